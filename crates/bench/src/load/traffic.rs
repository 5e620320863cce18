//! Bytes between the sockets and the packets: one large buffer for reading, one write per connection and turn.

use super::client::{Client, State};
use super::context::Context;
use super::link::Input;
use super::publish::{self, OUT_MAX};
use super::{lifecycle, receive};

/// What one read takes at most; more is as fast, and displaces the flows from the cache.
pub const READ_BYTES: usize = 128 * 1024;
/// Reads of one connection in one turn, so that nobody has the loop for himself.
const READS_MAX: u32 = 2;
/// With more acknowledgements than this to write, nothing is read: a server that does not read gets no more.
const UNREAD_MAX: usize = 16 * OUT_MAX;

/// Everything that the readiness of a socket can mean.
pub fn on_ready(slot: u32, client: &mut Client, cx: &mut Context, buffer: &mut Vec<u8>) {
    if matches!(client.state, State::Connecting | State::Opening) {
        match lifecycle::advance(slot, client, cx) {
            // TLS and WebSocket handshakes need to be read.
            Ok(false) if client.state == State::Connecting => return,
            Ok(_) => {}
            Err(reason) => return lifecycle::lose(slot, client, cx, &reason),
        }
    }
    if client.link.is_some() {
        flush(slot, client, cx);
        read(slot, client, cx, buffer);
    }
}

/// Reads what there is, within bounds; the rest is for the next turn.
pub fn read(slot: u32, client: &mut Client, cx: &mut Context, buffer: &mut Vec<u8>) {
    if cx.groups[usize::from(client.group)].is_stalled && client.state == State::Ready {
        return;
    }
    for _ in 0..READS_MAX {
        if client.pending_out() > UNREAD_MAX && !client.sees_end {
            break;
        }
        match read_once(slot, client, cx, buffer) {
            Ok(true) => {}
            Ok(false) => return,
            Err(reason) => return lifecycle::lose(slot, client, cx, &reason),
        }
    }
    cx.mark_hot(slot, client);
}

/// Whether there may be more.
fn read_once(slot: u32, client: &mut Client, cx: &mut Context, buffer: &mut Vec<u8>) -> Result<bool, String> {
    let kept = client.rest.len();
    if buffer.len() < kept + READ_BYTES / 2 {
        buffer.resize(kept + READ_BYTES, 0);
    }
    buffer[..kept].copy_from_slice(&client.rest);
    let Some(link) = &mut client.link else { return Ok(false) };
    let (size, may_go_on) = match link.read(&mut buffer[kept..])? {
        Input::Bytes(size) => (size, true),
        Input::Drained(size) => (size, client.sees_end && size > 0),
        Input::Closed => return Err("the server has closed".into()),
    };
    if link.has_pending() {
        cx.mark_dirty(slot, client);
    }
    if client.state == State::Opening {
        lifecycle::advance(slot, client, cx)?;
    }
    if size == 0 {
        return Ok(may_go_on);
    }
    cx.now_ns = cx.plan.clock.now_ns();
    client.last_in_ns = cx.now_ns;
    cx.meter.interval.counts.bytes_in += size as u64;
    let all = &buffer[..kept + size];
    let before = cx.meter.interval.counts.received;
    let (used, _) = receive::take_packets(slot, client, cx, all)?;
    if cx.meter.interval.counts.received > before {
        cx.last_message_ns = cx.now_ns;
    }
    keep_rest(&mut client.rest, &all[used..]);
    publish::pump(slot, client, cx);
    Ok(may_go_on)
}

fn keep_rest(rest: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.is_empty() {
        // Thousands of connections would each keep their largest.
        if rest.capacity() > 0 {
            *rest = Vec::new();
        }
        return;
    }
    rest.clear();
    rest.extend_from_slice(bytes);
}

/// Writes what there is; what the socket does not take waits for its readiness.
pub fn flush(slot: u32, client: &mut Client, cx: &mut Context) {
    let Some(link) = &mut client.link else { return };
    if matches!(client.state, State::Connecting | State::Opening) {
        return;
    }
    let before = client.out_taken;
    let result = loop {
        let pending = &client.out[client.out_taken..];
        if pending.is_empty() {
            break link.flush().map(|_| ());
        }
        match link.write(pending) {
            Ok(0) => break Ok(()),
            Ok(taken) => client.out_taken += taken,
            Err(reason) => break Err(reason),
        }
    };
    let taken = client.out_taken - before;
    cx.meter.interval.counts.bytes_out += taken as u64;
    if taken > 0 {
        client.last_out_ns = cx.now_ns;
    }
    if let Err(reason) = result {
        return lifecycle::lose(slot, client, cx, &reason);
    }
    tidy_out(client);
    if client.state == State::Leaving
        && client.out.is_empty()
        && taken > 0
        && let Some(link) = &mut client.link
    {
        link.say_goodbye();
    }
    if taken > 0 {
        publish::pump(slot, client, cx);
    }
}

fn tidy_out(client: &mut Client) {
    if client.out_taken == client.out.len() {
        client.out.clear();
        client.out_taken = 0;
        if client.out.capacity() > 4096 && !client.is_publisher {
            client.out = Vec::new();
        }
    } else if client.out_taken >= OUT_MAX {
        // Up to the beginning of a packet, so that what was not sent can be told from what was.
        let whole = client.whole_packets_taken();
        client.out.drain(..whole);
        client.out_taken -= whole;
    }
}
