//! Without free file descriptors, each connection is accepted with a spare one and closed, without spinning. Accepting
//! continues when some are free. Runs in a process of its own, because the limit belongs to the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use broker::Transport;
use net::EarlyCloseReason;

use super::client::*;
use super::server::*;

const CHILD: &str = "TIDEWIRE_NET_TEST_DESCRIPTORS";

#[test]
fn accepting_pauses_without_descriptors_and_recovers() {
    if std::env::var_os(CHILD).is_some() {
        return serve();
    }
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new("sh")
        .arg("-c")
        .arg("ulimit -n 64 && exec \"$0\" --exact descriptors::accepting_pauses_without_descriptors_and_recovers --nocapture")
        .arg(program)
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut field = move |name: &str| {
        lines
            .find_map(|line| line.split_once(name).map(|(_, value)| value.to_owned()))
            .expect("the child process prints this field")
    };
    let address: SocketAddr = field("address=").parse().unwrap();
    let mut sockets: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(address).ok()).collect();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    let errors: u64 = field("errors=").parse().unwrap();
    let ticks: u64 = field("ticks=").parse().unwrap();
    let refused: u64 = field("refused=").parse().unwrap();
    assert!(errors > 0, "descriptors did not run out");
    assert!(refused > 0, "the clients without a descriptor wait");
    assert!(ticks < 100, "{ticks} ticks within a second: the worker spins");
    sockets.truncate(1);
    // Until the server has closed these connections, it has no descriptor for a new one.
    eventually("a client is accepted", || is_accepted(address));
    let mut client = Client::connect(tcp(address), "after");
    client.ping();
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Whether the server answers a CONNECT of MQTT 3.1.1.
fn is_accepted(address: SocketAddr) -> bool {
    const CONNECT: &[u8] = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05probe";
    let Ok(mut socket) = TcpStream::connect(address) else {
        return false;
    };
    let mut connack = [0; 4];
    socket.write_all(CONNECT).is_ok() && socket.read_exact(&mut connack).is_ok() && connack == [0x20, 2, 0, 0]
}

fn serve() {
    let running = start(1);
    let mut stdin = std::io::stdin().lines();
    println!("address={}", running.address(Transport::Tcp));
    stdin.next();
    eventually("accepting fails", || running.handle.counters().accept_errors > 0);
    let before = running.handle.counters().ticks;
    std::thread::sleep(Duration::from_secs(1));
    let counters = running.handle.counters();
    println!("errors={}", counters.accept_errors);
    println!("ticks={}", counters.ticks - before);
    println!(
        "refused={}",
        running.refused(Transport::Tcp, EarlyCloseReason::DescriptorLimit)
    );
    while stdin.next().is_some() {}
}
