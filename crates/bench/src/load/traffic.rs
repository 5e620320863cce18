//! Data transfer between sockets and packets: one large buffer for reading, one write per connection and turn.

use super::client::{ClientSlot, LoadClient, LoadClientState};
use super::context::LoadContext;
use super::link::LinkInput;
use super::publish::{self, OUT_MAX};
use super::{lifecycle, receive};

/// Most bytes of one read; a larger buffer is no faster and evicts the flows from the cache.
pub const READ_BYTES: usize = 128 * 1024;
/// Most reads of one connection in one turn, so that all connections get their share.
const READS_MAX: u32 = 2;
/// With more pending bytes than this, nothing is read: a server that does not read must not get more acknowledgements.
const UNREAD_MAX: usize = 16 * OUT_MAX;

/// Handles the readiness of a socket.
pub fn on_ready(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext, buffer: &mut Vec<u8>) {
    if matches!(client.state, LoadClientState::Connecting | LoadClientState::Opening) {
        match lifecycle::advance(slot, client, cx) {
            // The TLS and WebSocket handshakes need reads.
            Ok(false) if client.state == LoadClientState::Connecting => return,
            Ok(_) => {}
            Err(reason) => return lifecycle::handle_disconnect(slot, client, cx, &reason),
        }
    }
    if client.link.is_some() {
        flush(slot, client, cx);
        read(slot, client, cx, buffer);
        cx.set_link_timer(slot, client);
    }
}

/// Reads the available data up to a limit; the rest is read in the next turn.
pub fn read(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext, buffer: &mut Vec<u8>) {
    if cx.groups[client.group.position()].is_stalled && client.state == LoadClientState::Ready {
        return;
    }
    for _ in 0..READS_MAX {
        if client.pending_out() > UNREAD_MAX && !client.is_peer_closed {
            break;
        }
        match read_once(slot, client, cx, buffer) {
            Ok(true) => {}
            Ok(false) => return,
            Err(reason) => return lifecycle::handle_disconnect(slot, client, cx, &reason),
        }
    }
    cx.mark_readable(slot, client);
}

/// Reads once; returns whether there may be more.
fn read_once(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    buffer: &mut Vec<u8>,
) -> Result<bool, String> {
    let rest_bytes = client.rest.len();
    if buffer.len() < rest_bytes + READ_BYTES / 2 {
        buffer.resize(rest_bytes + READ_BYTES, 0);
    }
    buffer[..rest_bytes].copy_from_slice(&client.rest);
    let Some(link) = &mut client.link else { return Ok(false) };
    let (size, may_go_on) = match link.read(&mut buffer[rest_bytes..])? {
        LinkInput::Bytes(size) => (size, true),
        LinkInput::Drained(size) => (size, client.is_peer_closed && size > 0),
        LinkInput::Closed => return Err("the server closed the connection".into()),
    };
    if link.has_pending() {
        cx.mark_dirty(slot, client);
    }
    if client.state == LoadClientState::Opening {
        lifecycle::advance(slot, client, cx)?;
    }
    if size == 0 {
        return Ok(may_go_on);
    }
    cx.now_ns = cx.plan.clock.now_ns();
    client.session.keep_alive.record_response();
    cx.meter.interval.counts.bytes_in += size as u64;
    let all = &buffer[..rest_bytes + size];
    let before = cx.meter.interval.counts.received;
    let (used, _) = receive::take_packets(slot, client, cx, all)?;
    if cx.meter.interval.counts.received > before {
        cx.last_message_ns = cx.now_ns;
    }
    store_rest(&mut client.rest, &all[used..]);
    publish::pump(slot, client, cx);
    Ok(may_go_on)
}

fn store_rest(rest: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.is_empty() {
        // Otherwise thousands of connections would each keep their largest buffer.
        if rest.capacity() > 0 {
            *rest = Vec::new();
        }
        return;
    }
    rest.clear();
    rest.extend_from_slice(bytes);
}

/// Writes the pending data; the rest waits until the socket is writable.
pub fn flush(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    let Some(link) = &mut client.link else { return };
    if matches!(client.state, LoadClientState::Connecting | LoadClientState::Opening) {
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
        client.session.keep_alive.record_sent(cx.now_ns);
    }
    if let Err(reason) = result {
        return lifecycle::handle_disconnect(slot, client, cx, &reason);
    }
    compact_output(client);
    if client.state == LoadClientState::Disconnecting
        && client.out.is_empty()
        && taken > 0
        && let Some(link) = &mut client.link
    {
        link.close_layers();
    }
    cx.set_link_timer(slot, client);
    if taken > 0 {
        publish::pump(slot, client, cx);
    }
}

fn compact_output(client: &mut LoadClient) {
    if client.out_taken == client.out.len() {
        client.out.clear();
        client.out_taken = 0;
        if client.out.capacity() > 4096 && !client.is_publisher {
            client.out = Vec::new();
        }
    } else if client.out_taken >= OUT_MAX {
        // Only complete packets are removed, so that sent and unsent packets can be distinguished.
        let whole = client.whole_packets_taken();
        client.out.drain(..whole);
        client.out_taken -= whole;
    }
}
