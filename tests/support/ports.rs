//! Ports for servers that tests start.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The ports are outside the range from which the kernel takes ports for outgoing connections. With port 0, a client of
/// another test could get the same port before the server binds it. Tests run at the same time as others, so they have
/// separate ranges: the servers of `dev/server.sh` from 10000, of `tests/interop` from 13000, of `tests/console` from
/// 14000.
const PORTS: Range<u16> = 20_000..32_000;
/// Number of ports that a process reserves at a time.
const BLOCK: u16 = 100;

/// Ports that belong to this process. Other processes that run tests do not try to bind them, even while a test
/// restarts its server.
struct OwnPorts {
    free: Range<u16>,
    next_block: u16,
    /// Locked as long as the process runs.
    locks: Vec<File>,
}

static OWN: Mutex<OwnPorts> = Mutex::new(OwnPorts {
    free: 0..0,
    next_block: 0,
    locks: Vec::new(),
});

/// Returns a free port of this machine.
pub fn free_port() -> SocketAddr {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        for port in own.free.by_ref() {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            if TcpListener::bind(address).is_ok() {
                return address;
            }
        }
        own.reserve_block();
    }
}

impl OwnPorts {
    fn reserve_block(&mut self) {
        let directory = std::env::temp_dir().join("tidewire-test-ports");
        fs::create_dir_all(&directory).expect("the temporary directory is writable");
        let blocks = (PORTS.end - PORTS.start) / BLOCK;
        let first = (std::process::id() % u32::from(blocks)) as u16;
        while self.next_block < blocks {
            let block = (first + self.next_block) % blocks;
            self.next_block += 1;
            let path = directory.join(block.to_string());
            let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if file.try_lock().is_ok() {
                self.locks.push(file);
                let start = PORTS.start + block * BLOCK;
                self.free = start..start + BLOCK;
                return;
            }
        }
        panic!("other processes use all ports in {PORTS:?}");
    }
}
