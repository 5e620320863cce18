//! How much one answer may show: entities, keys and points multiply.

use super::super::failure::Failure;

const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A value takes this much beside its text and its key.
const VALUE_BYTES: usize = 64;

/// For the values of one answer.
pub struct Room {
    left: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room { left: ANSWER_BYTES_MAX }
    }
}

impl Room {
    /// For a value whose key and text have so many bytes.
    pub fn take(&mut self, bytes: usize) -> Result<(), Failure> {
        let left = self.left.checked_sub(bytes + VALUE_BYTES);
        self.left = left.ok_or_else(|| {
            Failure::bad_request(format!(
                "The answer has more than {} MiB: ask for fewer keys, a smaller page or a shorter range",
                ANSWER_BYTES_MAX >> 20
            ))
        })?;
        Ok(())
    }
}
