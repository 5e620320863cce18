//! Ports for servers that tests start.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a free port outside the range from which the kernel takes ports for outgoing connections. With port 0, a
/// client of another test could get the same port before the server binds it.
pub fn free_port() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    let seed = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (FIRST + seed.wrapping_add(step) % COUNT) as u16;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
