//! The verification header of a message (publisher, sequence number, due time), and the check of the bytes after it.
//!
//! ```text
//! byte 0   2      5          9       15      16
//!      run sender sequence   due     check   fill …
//!      u16 u24    u32        u48 ns  u8      from run, sender and sequence
//! ```
//! Big endian. `check` also covers the length of the payload, so that a truncated one is detected. `sender` numbers the
//! clients of all publishing groups of the scenario consecutively, equally on every machine. `due` is in nanoseconds
//! since 1970 on the orchestrator's clock; its 48 bits wrap around after 78 hours.

pub const HEADER_BYTES: usize = 16;
pub const SENDERS_MAX: u64 = 1 << 24;
const DUE_MASK: u64 = (1 << 48) - 1;

/// Number of a publishing client, over all groups and machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SenderNumber(pub u32);

impl SenderNumber {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationHeader {
    pub run: u16,
    pub sender: SenderNumber,
    pub sequence: u32,
    pub due_ns: u64,
}

impl VerificationHeader {
    /// Encodes the header of a payload of `length` bytes, which is part of the check; 0 in a text.
    #[inline]
    pub fn encode(self, length: usize) -> [u8; HEADER_BYTES] {
        let high =
            u64::from(self.run) << 48 | u64::from(self.sender.0 & 0xFF_FFFF) << 24 | u64::from(self.sequence >> 8);
        let low = u64::from(self.sequence) << 56 | (self.due_ns & DUE_MASK) << 8;
        let low = low | u64::from(check(high, low, length));
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    /// Decodes a header; `None` if the check byte is wrong.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES], length: usize) -> Option<VerificationHeader> {
        let whole = u128::from_be_bytes(*bytes);
        let (high, low) = ((whole >> 64) as u64, whole as u64);
        if check(high, low & !0xFF, length) != low as u8 {
            return None;
        }
        Some(VerificationHeader {
            run: (high >> 48) as u16,
            sender: SenderNumber((high >> 24) as u32 & 0xFF_FFFF),
            sequence: (high as u32) << 8 | (low >> 56) as u32,
            due_ns: low >> 8 & DUE_MASK,
        })
    }

    /// Returns the difference of two due times, across a wrap-around if needed.
    #[inline]
    pub fn difference_ns(later_ns: u64, earlier_ns: u64) -> i64 {
        const UNUSED_BITS: u32 = DUE_MASK.leading_zeros();
        (later_ns.wrapping_sub(earlier_ns) << UNUSED_BITS) as i64 >> UNUSED_BITS
    }

    fn seed(self) -> u64 {
        let identity = u64::from(self.run) << 56 ^ u64::from(self.sender.0) << 32 ^ u64::from(self.sequence);
        (identity ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    /// Writes the bytes after the header. Each word depends only on its place and the seed, so that the compiler can
    /// compute several at once.
    #[inline]
    pub fn fill(self, out: &mut [u8]) {
        let seed = self.seed();
        let (words, tail) = out.as_chunks_mut::<8>();
        for (place, word) in words.iter_mut().enumerate() {
            *word = fill_word(seed, place).to_le_bytes();
        }
        let last = fill_word(seed, words.len()).to_le_bytes();
        tail.copy_from_slice(&last[..tail.len()]);
    }

    #[inline]
    pub fn has_filled(self, bytes: &[u8]) -> bool {
        let seed = self.seed();
        let (words, tail) = bytes.as_chunks::<8>();
        let mut difference = 0;
        for (place, word) in words.iter().enumerate() {
            difference |= u64::from_le_bytes(*word) ^ fill_word(seed, place);
        }
        difference |= tail_difference(seed, bytes, words.len(), tail);
        difference == 0
    }
}

/// Compares the last bytes as one word that overlaps the previous one. A comparison of slices would read back the
/// expected bytes in another width right after they were written, and that stall would take longer than everything
/// else.
#[inline]
fn tail_difference(seed: u64, bytes: &[u8], words: usize, tail: &[u8]) -> u64 {
    let last = fill_word(seed, words);
    let bits = 8 * tail.len() as u32;
    match (bits, bytes.last_chunk::<8>()) {
        (0, _) => 0,
        (_, Some(end)) => u64::from_le_bytes(*end) ^ (fill_word(seed, words - 1) >> bits | last << (64 - bits)),
        (_, None) => u64::from(
            tail.iter()
                .zip(last.to_le_bytes())
                .any(|(byte, expected)| *byte != expected),
        ),
    }
}

#[inline]
fn fill_word(seed: u64, place: usize) -> u64 {
    (seed ^ seed >> 29).wrapping_add((place as u64).wrapping_mul(0xA076_1D64_78BD_642F))
}

#[inline]
fn check(high: u64, low: u64, length: usize) -> u8 {
    let mixed = (high ^ low.rotate_left(31) ^ (length as u64).rotate_left(17) ^ 0x5851_F42D_4C95_7F2D)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// Encodes a header for `${truth}` in templates.
pub fn to_hex(header: VerificationHeader) -> [u8; 2 * HEADER_BYTES] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = [0; 2 * HEADER_BYTES];
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(header.encode(0)) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0xF)]];
    }
    out
}

/// Returns the first header in hexadecimal in a text. One in 256 random runs of digits has a correct check byte, so
/// `is_ours` decides in addition.
pub fn find_hex(text: &[u8], is_ours: impl Fn(VerificationHeader) -> bool) -> Option<VerificationHeader> {
    const DIGITS: usize = 2 * HEADER_BYTES;
    let mut run = 0;
    for (at, &byte) in text.iter().enumerate() {
        run = if nibble(byte).is_some() { run + 1 } else { 0 };
        if run >= DIGITS
            && let Some(header) = from_hex(&text[at + 1 - DIGITS..=at])
            && is_ours(header)
        {
            return Some(header);
        }
    }
    None
}

fn from_hex(digits: &[u8]) -> Option<VerificationHeader> {
    let mut bytes = [0; HEADER_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    VerificationHeader::decode(&bytes, 0)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: VerificationHeader = VerificationHeader {
        run: 0xBEEF,
        sender: SenderNumber(0xAB_CDEF),
        sequence: 0x1234_5678,
        due_ns: 0x9ABC_DEF0_1234,
    };

    #[test]
    fn header_after_encode_and_decode_is_equal() {
        assert_eq!(VerificationHeader::decode(&HEADER.encode(99), 99), Some(HEADER));
        assert_eq!(
            HEADER.encode(99)[..9],
            [0xBE, 0xEF, 0xAB, 0xCD, 0xEF, 0x12, 0x34, 0x56, 0x78]
        );
    }

    #[test]
    fn difference_across_wrap_around_is_correct() {
        for (later, earlier, difference) in [
            (7, 5, 2),
            (5, 7, -2),
            (3, DUE_MASK, 4),
            (DUE_MASK, 3, -4),
            (1 << 60 | 9, 4, 5),
        ] {
            assert_eq!(VerificationHeader::difference_ns(later, earlier), difference);
        }
    }

    #[test]
    fn decode_of_changed_header_mostly_fails() {
        let bytes = HEADER.encode(99);
        let passed = (0..8 * HEADER_BYTES).filter(|bit| {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            VerificationHeader::decode(&changed, 99).is_some()
        });
        assert!(passed.count() <= 2);
        assert!(
            (0..99)
                .filter(|length| VerificationHeader::decode(&bytes, *length).is_some())
                .count()
                <= 2
        );
    }

    #[test]
    fn has_filled_with_changed_byte_is_false() {
        for length in [0, 1, 7, 8, 9, 50] {
            let mut bytes = vec![0; length];
            HEADER.fill(&mut bytes);
            assert!(HEADER.has_filled(&bytes));
            for at in 0..length {
                bytes[at] ^= 0x10;
                assert!(!HEADER.has_filled(&bytes), "byte {at} of {length}");
                bytes[at] ^= 0x10;
            }
        }
        let mut other = [0; 48];
        let next = VerificationHeader {
            sequence: HEADER.sequence + 1,
            ..HEADER
        };
        next.fill(&mut other);
        assert!(!HEADER.has_filled(&other));
    }

    #[test]
    fn find_hex_in_text_returns_header() {
        let digits = String::from_utf8(to_hex(HEADER).to_vec()).unwrap();
        let text = format!("{{\"v\":17,\"id\":\"abc{digits}\"}}");
        assert_eq!(
            find_hex(text.as_bytes(), |header| header.run == HEADER.run),
            Some(HEADER)
        );
        assert_eq!(find_hex(text.as_bytes(), |_| false), None);
        assert_eq!(find_hex(b"no header 0123456789abcdef", |_| true), None);
    }
}
