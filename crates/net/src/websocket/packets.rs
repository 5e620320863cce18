//! Puts each MQTT packet of an output queue into a binary frame of its own.
//!
//! A frame may contain several packets, and a receiver must not assume that frames and packets are aligned
//! [MQTT-6.0.0-2]. Several clients assume it all the same: Eclipse Paho C loses all packets of a frame but the first.

use super::frame::{Opcode, frame_header};

/// The header of a frame and the size of its packet.
pub(crate) struct PacketFrame {
    header: [u8; 10],
    header_bytes: usize,
    pub(crate) packet_bytes: usize,
}

impl PacketFrame {
    fn new(packet_bytes: usize) -> PacketFrame {
        let (header, header_bytes) = frame_header(Opcode::Binary, packet_bytes);
        PacketFrame {
            header,
            header_bytes,
            packet_bytes,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.header_bytes + self.packet_bytes
    }
}

/// A position in a list of slices.
#[derive(Clone)]
struct SliceCursor<'s, 'a> {
    slices: &'s [&'a [u8]],
    /// Bytes of the first slice before the position.
    offset: usize,
}

impl<'s, 'a> SliceCursor<'s, 'a> {
    fn new(slices: &'s [&'a [u8]]) -> SliceCursor<'s, 'a> {
        SliceCursor { slices, offset: 0 }
    }

    /// Returns at most `limit` bytes of one slice, and moves behind them.
    fn next(&mut self, limit: usize) -> Option<&'a [u8]> {
        loop {
            let (slice, others) = self.slices.split_first()?;
            let rest = &slice[self.offset..];
            if rest.is_empty() {
                (self.slices, self.offset) = (others, 0);
                continue;
            }
            let taken = &rest[..rest.len().min(limit)];
            self.offset += taken.len();
            return Some(taken);
        }
    }

    /// Moves behind `bytes` bytes. Returns `false` if there are fewer.
    fn skip(&mut self, mut bytes: usize) -> bool {
        while bytes > 0 {
            match self.next(bytes) {
                Some(taken) => bytes -= taken.len(),
                None => return false,
            }
        }
        true
    }

    /// Returns the size of the packet that begins here, from its fixed header (section 2.1 of MQTT 5.0).
    fn packet_bytes(mut self) -> Option<usize> {
        self.next(1)?;
        let (mut remaining, mut length_bytes) = (0, 0);
        loop {
            let byte = self.next(1)?[0];
            remaining |= usize::from(byte & 0x7F) << (7 * length_bytes);
            length_bytes += 1;
            match byte & 0x80 {
                0 => return Some(1 + length_bytes + remaining),
                _ if length_bytes == 4 => return None,
                _ => {}
            }
        }
    }
}

/// Returns the size of the packet at the start of the slices.
pub(crate) fn first_packet_bytes(slices: &[&[u8]]) -> Option<usize> {
    SliceCursor::new(slices).packet_bytes()
}

/// Appends a frame for each packet that the slices contain completely.
pub(crate) fn add_frames(slices: &[&[u8]], frames: &mut Vec<PacketFrame>) {
    let mut cursor = SliceCursor::new(slices);
    while let Some(bytes) = cursor.clone().packet_bytes() {
        if !cursor.skip(bytes) {
            return;
        }
        frames.push(PacketFrame::new(bytes));
    }
}

/// Appends the headers and packets of all frames.
pub(crate) fn interleave<'a>(slices: &[&'a [u8]], frames: &'a [PacketFrame], out: &mut Vec<&'a [u8]>) {
    let mut cursor = SliceCursor::new(slices);
    for frame in frames {
        out.push(&frame.header[..frame.header_bytes]);
        let mut left = frame.packet_bytes;
        while left > 0 {
            let part = cursor.next(left).expect("a frame has a complete packet");
            left -= part.len();
            out.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(slices: &[&[u8]]) -> Vec<u8> {
        let (mut frames, mut out) = (Vec::new(), Vec::new());
        add_frames(slices, &mut frames);
        interleave(slices, &frames, &mut out);
        out.concat()
    }

    #[test]
    fn packets_get_frames_wherever_slices_end() {
        let packets = [0x40, 2, 0, 1, 0x30, 3, 0, 1, b'a', 0xD0, 0];
        let expected = [0x82, 4, 0x40, 2, 0, 1, 0x82, 5, 0x30, 3, 0, 1, b'a', 0x82, 2, 0xD0, 0];
        for split in 0..=packets.len() {
            let (first, second) = packets.split_at(split);
            assert_eq!(framed(&[first, second]), expected, "split at {split}");
        }
    }

    #[test]
    fn incomplete_packet_gets_no_frame() {
        let packets: &[u8] = &[0x40, 2, 0, 1, 0x30, 200, 1, 0];
        assert_eq!(framed(&[packets]), [0x82, 4, 0x40, 2, 0, 1]);
        assert_eq!(first_packet_bytes(&[&packets[4..]]), Some(203));
        assert_eq!(first_packet_bytes(&[&[0x30, 0x80]]), None);
    }

    #[test]
    fn remaining_length_has_one_to_four_bytes() {
        for (length, bytes) in [
            (&[127_u8][..], 129),
            (&[0x80, 1], 131),
            (&[0xFF, 0xFF, 0x7F], 2_097_155),
            (&[0x80, 0x80, 0x80, 1], 2_097_157),
        ] {
            assert_eq!(first_packet_bytes(&[&[0x30], length]), Some(bytes));
        }
        assert_eq!(first_packet_bytes(&[&[0x30, 0x80, 0x80, 0x80, 0x80, 1]]), None);
    }
}
