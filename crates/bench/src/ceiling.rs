//! The raw-socket ceiling: the cost of moving the bytes of a run without a broker.
//!
//! A *relay* thread does with bare sockets what the broker did: it reads the inbound bytes of the run from as many
//! sockets, in segments of the mean size in which the broker received them, and writes its outbound bytes to as many
//! sockets, in writes of the mean size in which the broker's bytes arrived (both from TCP_INFO). A *peer* thread plays
//! the clients. There is no MQTT, no routing and no work per message, so the relay's CPU time is what the kernel needs
//! for the bytes alone. The measurement follows the run, on the same machine.
//!
//! The sockets are non-blocking and tried in turn: the kernel takes writes of these sizes whole, so polling would only
//! add cost.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::load::thread_cpu_ns;
use crate::result::{Ceiling, RunResult};

/// The traffic that the relay reproduces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrafficShape {
    pub sockets_in: usize,
    pub sockets_out: usize,
    pub segment_in_bytes: usize,
    pub write_out_bytes: usize,
    /// Inbound bytes per outbound byte.
    pub inbound_share: f64,
}

/// The cost that the relay measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelayCost {
    pub bytes_out: u64,
    pub seconds: f64,
    pub cpu_s: f64,
}

const DURATION: Duration = Duration::from_secs(2);
/// Most sockets: a process may have a limit of open files above this.
const SOCKETS_MAX: usize = 4000;
const BUFFER_BYTES: usize = 256 * 1024;

/// Measures the ceiling of a run; `None` unless the run delivered something and the broker's cost is known.
pub fn of(result: &RunResult) -> Result<Option<Ceiling>, String> {
    let Some(broker) = result.broker.as_ref().filter(|broker| broker.cpu_s_per_million > 0.0) else {
        return Ok(None);
    };
    let counts = &result.counts;
    if counts.received == 0 || counts.bytes_in == 0 {
        return Ok(None);
    }
    let shape = shape(result);
    let moved = measure(shape, DURATION).map_err(|error| format!("cannot measure the raw-socket ceiling: {error}"))?;
    let delivery_bytes = counts.bytes_in as f64 / counts.received as f64;
    let deliveries = moved.bytes_out as f64 / delivery_bytes;
    let cpu_s_per_million = moved.cpu_s / (deliveries / 1e6);
    Ok(Some(Ceiling {
        sockets: (shape.sockets_in + shape.sockets_out) as u32,
        write_bytes: shape.write_out_bytes as f64,
        cpu_s_per_million,
        deliveries_per_s: deliveries / moved.seconds,
        ratio: cpu_s_per_million / broker.cpu_s_per_million,
    }))
}

fn shape(result: &RunResult) -> TrafficShape {
    let groups = &result.scenario.group;
    let count = |of: fn(&crate::scenario::ClientGroup) -> bool| {
        let clients: usize = groups
            .iter()
            .filter(|group| of(group))
            .map(|group| group.clients as usize)
            .sum();
        clients.clamp(1, SOCKETS_MAX)
    };
    let counts = &result.counts;
    let mean = |bytes: u64, pieces: u64| (bytes as f64 / pieces.max(1) as f64).round().clamp(1.0, 65_000.0) as usize;
    TrafficShape {
        sockets_in: count(|group| group.publish.is_some()),
        sockets_out: count(|group| !group.subscribe.is_empty()),
        // Each write of the generator arrives as one segment.
        segment_in_bytes: mean(counts.bytes_out, counts.segments_out.max(1)),
        write_out_bytes: mean(counts.bytes_in, counts.segments_in),
        inbound_share: counts.bytes_out as f64 / counts.bytes_in as f64,
    }
}

/// Moves bytes for this duration.
pub fn measure(shape: TrafficShape, duration: Duration) -> io::Result<RelayCost> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut relay_in, mut peer_out) = connected(&listener, shape.sockets_in)?;
    let (mut relay_out, mut peer_in) = connected(&listener, shape.sockets_out)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| run_peer(&mut peer_out, &mut peer_in, shape, &is_over));
        let moved = relay(&mut relay_in, &mut relay_out, shape, duration);
        is_over.store(true, Ordering::Relaxed);
        moved
    })
}

type Sockets = Vec<TcpStream>;

fn connected(listener: &TcpListener, count: usize) -> io::Result<(Sockets, Sockets)> {
    let (mut here, mut there) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        here.push(TcpStream::connect(listener.local_addr()?)?);
        there.push(listener.accept()?.0);
    }
    for socket in here.iter().chain(&there) {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    Ok((here, there))
}

/// Writes to one socket after the other, and reads the inbound bytes that correspond to its writes.
fn relay(
    inbound: &mut Sockets,
    outbound: &mut Sockets,
    shape: TrafficShape,
    duration: Duration,
) -> io::Result<RelayCost> {
    let payload = vec![0x30; shape.write_out_bytes];
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut bytes_out, mut bytes_in) = (0u64, 0u64);
    let (start, cpu_before) = (Instant::now(), thread_cpu_ns());
    let mut next_in = 0;
    while start.elapsed() < duration {
        for socket in outbound.iter_mut() {
            match socket.write(&payload) {
                Ok(bytes) => bytes_out += bytes as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            // Each read visits one socket, as a broker does for each event.
            while (bytes_in as f64) < bytes_out as f64 * shape.inbound_share {
                next_in = (next_in + 1) % inbound.len();
                match inbound[next_in].read(&mut buffer[..shape.segment_in_bytes.min(BUFFER_BYTES)]) {
                    Ok(bytes) => bytes_in += bytes as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(RelayCost {
        bytes_out,
        seconds: start.elapsed().as_secs_f64(),
        cpu_s: (thread_cpu_ns() - cpu_before) as f64 / 1e9,
    })
}

/// Plays the clients: keeps the relay's inbound sockets full and its outbound sockets empty.
fn run_peer(outbound: &mut Sockets, inbound: &mut Sockets, shape: TrafficShape, is_over: &AtomicBool) {
    let payload = vec![0x30; shape.segment_in_bytes];
    let mut buffer = vec![0; BUFFER_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        for socket in inbound.iter_mut() {
            while matches!(socket.read(&mut buffer), Ok(bytes) if bytes == BUFFER_BYTES) {}
        }
        for socket in outbound.iter_mut() {
            // A full socket needs no data, so its error is ignored.
            let _ = socket.write(&payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measure_with_larger_writes_costs_less_per_byte() {
        let shape = |write_out_bytes| TrafficShape {
            sockets_in: 2,
            sockets_out: 8,
            segment_in_bytes: 100,
            write_out_bytes,
            inbound_share: 0.01,
        };
        let cost = |write_out_bytes| {
            let moved = measure(shape(write_out_bytes), Duration::from_millis(300)).unwrap();
            assert!(
                moved.bytes_out > 0 && moved.cpu_s > 0.0 && moved.cpu_s <= moved.seconds * 1.1,
                "{moved:?}"
            );
            moved.cpu_s / moved.bytes_out as f64
        };
        assert!(cost(100) > 5.0 * cost(8000));
    }
}
