//! Tests calls into shards, and the shutdown.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use broker::{ShardId, Transport};
use net::CallError;

use super::client::*;
use super::server::*;

/// A minimal executor.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn calls_reach_their_shard_and_answer() {
    let running = start(3);
    let handle = &running.handle;
    assert_eq!(handle.shards(), 3);
    assert!(handle.call(ShardId(2), PATIENCE, |_, now| now.unix_ms).unwrap() > 1_600_000_000_000);
    let threads = handle
        .call_all(PATIENCE, |_, _| thread::current().name().unwrap().to_owned())
        .unwrap();
    assert_eq!(threads, ["worker-0", "worker-1", "worker-2"]);
    assert_eq!(block_on(handle.call_async(ShardId(1), |_, _| 5).unwrap()), Ok(5));
    let all: Vec<_> = handle
        .call_all_async(|_, _| 6)
        .unwrap()
        .into_iter()
        .map(block_on)
        .collect();
    assert_eq!(all, [Ok(6), Ok(6), Ok(6)]);
    assert_eq!(
        handle.call(ShardId(3), PATIENCE, |_, _| ()),
        Err(CallError::NoSuchShard)
    );
}

#[test]
fn calls_keep_their_order() {
    let running = start(1);
    let (sender, receiver) = std::sync::mpsc::channel();
    for n in 0..500 {
        let sender = sender.clone();
        let _unused = running
            .handle
            .call_async(ShardId(0), move |_, _| sender.send(n).unwrap())
            .unwrap();
    }
    let numbers: Vec<u32> = receiver.iter().take(500).collect();
    assert!(numbers.is_sorted());
}

#[test]
fn shutdown_disconnects_clients_and_frees_the_port() {
    let running = start(4);
    let mut clients = Vec::new();
    for transport in ALL_TRANSPORTS {
        for n in 0..40 {
            let mut stream = running.open(transport);
            stream.write_all(&connect_v5(&format!("{transport:?}-{n}"))).unwrap();
            assert_eq!(read_packet(&mut stream).unwrap().first, 0x20);
            clients.push(stream);
        }
    }
    let silent = running.tcp();
    let address = running.address(Transport::Tcp);
    let handle = running.handle.clone();
    let begin = Instant::now();
    let reader = thread::spawn(move || {
        for stream in &mut clients {
            // [MQTT-3.14.2] 0x8B: Server shutting down.
            let packet = read_packet(stream).expect("the server sends DISCONNECT before it closes the connection");
            assert_eq!((packet.first, packet.body[0]), (0xE0, 0x8B));
            assert_eq!(read_packet(stream), None);
        }
    });
    handle.shutdown(Duration::from_secs(10));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    reader.join().unwrap();
    drop(silent);
    std::net::TcpListener::bind(address).expect("the port is free again");
    assert_eq!(handle.connections(), 0);
    assert_eq!(handle.call(ShardId(0), PATIENCE, |_, _| ()), Err(CallError::Stopped));
    handle.shutdown(Duration::from_secs(1));
}

#[test]
fn shutdown_is_bounded_when_a_client_does_not_read() {
    let mut options = options(1);
    options.listener(Transport::Tcp).send_buffer_bytes = Some(4096);
    let running = options.start();
    let mut deaf = running.client(Transport::Tcp, "deaf");
    deaf.subscribe("t");
    let mut publisher = running.client(Transport::Tcp, "publisher");
    for _ in 0..20 {
        publisher.send(&publish("t", &[0; 500_000]));
    }
    publisher.ping();
    let begin = Instant::now();
    running.handle.shutdown(Duration::from_millis(300));
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(running.handle.connections(), 0);
}

#[test]
fn an_idle_server_does_nothing() {
    let running = start(2);
    let _client = running.client(Transport::Tcp, "idle");
    running.handle.call_all(PATIENCE, |_, _| ()).unwrap();
    let before = running.handle.counters().ticks;
    thread::sleep(Duration::from_millis(300));
    let ticks = running.handle.counters().ticks - before;
    assert!(ticks < 30, "{ticks} ticks while idle");
}
