//! Measures the crossover for the constants of `outlet.rs`: one vectored write of 64 slices, or copying them and one
//! plain write.
//!
//! `cargo run --release -p tidewire-net --example gather_crossover`

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

const ROUNDS: u32 = 20_000;

fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (mut peer, _) = listener.accept()?;
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while peer.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    });
    let mut out = std::io::stdout();
    writeln!(out, "slices  bytes each  vectored ns  gathered ns")?;
    for slices in [2, 4, 8, 16, 32, 64] {
        for bytes in [32, 128, 512, 2048] {
            // Not adjacent, like messages of many publishers in one arena.
            let arena = vec![7u8; slices * bytes * 4];
            let parts: Vec<&[u8]> = (0..slices)
                .map(|n| &arena[n * bytes * 4..n * bytes * 4 + bytes])
                .collect();
            let vectored = time(|| {
                let vector: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
                socket.write_vectored(&vector)
            })?;
            let mut gathered = Vec::new();
            let copied = time(|| {
                gathered.clear();
                for part in &parts {
                    gathered.extend_from_slice(part);
                }
                socket.write(&gathered)
            })?;
            writeln!(out, "{slices:6}  {bytes:10}  {vectored:11}  {copied:11}")?;
        }
    }
    Ok(())
}

fn time(mut write: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<u128> {
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        write()?;
    }
    Ok(begin.elapsed().as_nanos() / u128::from(ROUNDS))
}
