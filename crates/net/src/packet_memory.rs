//! Memory of incomplete packets of all connections together.
//!
//! A client that announces a large packet costs nothing before it sends the bytes. Each growth of a connection's buffer
//! beyond `FREE_BYTES` is taken from the pool before the memory is allocated. If the pool is exhausted, the server
//! disconnects the client that needs more, instead of running out of memory.

use std::sync::Arc;

use crate::memory_pool::{MemoryPool, MemoryShare};

/// Size of an incomplete packet that is not counted.
pub(crate) const FREE_BYTES: usize = 4 * 1024;

/// The memory for an incomplete packet is not available.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfPacketMemory;

/// Makes space for `more` bytes in the buffer of a packet of `packet_bytes` bytes. The buffer at most doubles, so that
/// it grows with the received bytes.
pub(crate) fn reserve(
    memory: &Arc<MemoryPool>,
    buffer: &mut Vec<u8>,
    share: &mut Option<Box<MemoryShare>>,
    more: usize,
    packet_bytes: usize,
) -> Result<(), OutOfPacketMemory> {
    let length = buffer.len() + more;
    if length <= buffer.capacity() {
        return Ok(());
    }
    let capacity = packet_bytes.clamp(length, length.max(buffer.len().max(more) * 2));
    let counted = capacity.saturating_sub(FREE_BYTES);
    if counted > share.as_ref().map_or(0, |share| share.bytes()) {
        let share = share.get_or_insert_with(|| Box::new(MemoryShare::empty(memory)));
        if !share.resize(counted) {
            return Err(OutOfPacketMemory);
        }
    }
    buffer
        .try_reserve_exact(capacity - buffer.len())
        .map_err(|_| OutOfPacketMemory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_grows_with_the_received_bytes() {
        let memory = MemoryPool::new(1 << 20);
        let (mut buffer, mut share) = (Vec::new(), None);
        for received in 1..=200_000 / 1000 {
            reserve(&memory, &mut buffer, &mut share, 1000, 1 << 28).unwrap();
            buffer.extend_from_slice(&[0; 1000]);
            assert!(
                buffer.capacity() <= received * 2000,
                "{received}: {}",
                buffer.capacity()
            );
            assert_eq!(memory.used(), buffer.capacity().saturating_sub(FREE_BYTES));
        }
        drop(share);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn last_growth_is_to_the_size_of_the_packet() {
        let memory = MemoryPool::new(1 << 20);
        let (mut buffer, mut share) = (Vec::new(), None);
        reserve(&memory, &mut buffer, &mut share, 6000, 10_000).unwrap();
        buffer.extend_from_slice(&[0; 6000]);
        assert_eq!(buffer.capacity(), 10_000);
        reserve(&memory, &mut buffer, &mut share, 4000, 10_000).unwrap();
        assert_eq!(buffer.capacity(), 10_000);
    }

    #[test]
    fn connections_share_the_memory() {
        let memory = MemoryPool::new(100_000);
        let grow = |more| {
            let (mut buffer, mut share) = (Vec::new(), None);
            reserve(&memory, &mut buffer, &mut share, more, more).map(|()| share)
        };
        let first = grow(60_000).unwrap();
        assert!(grow(60_000).is_err());
        assert!(grow(FREE_BYTES).unwrap().is_none(), "small packets are free");
        drop(first);
        assert!(grow(60_000).is_ok());
    }
}
