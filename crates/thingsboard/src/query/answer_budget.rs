//! Limit on the size of one answer, because the numbers of entities, keys and points multiply.

use super::super::failure::ThingsboardError;

const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Memory of a value besides its text and its key.
const VALUE_BYTES: usize = 64;

/// Counts the bytes of one answer.
pub struct QueryAnswerBudget {
    left: usize,
}

impl Default for QueryAnswerBudget {
    fn default() -> QueryAnswerBudget {
        QueryAnswerBudget { left: ANSWER_BYTES_MAX }
    }
}

impl QueryAnswerBudget {
    /// Counts a value whose key and text have this many bytes.
    pub fn take(&mut self, bytes: usize) -> Result<(), ThingsboardError> {
        let left = self.left.checked_sub(bytes + VALUE_BYTES);
        self.left = left.ok_or_else(|| {
            ThingsboardError::bad_request(format!(
                "The answer exceeds {} MiB: request fewer keys, a smaller page or a shorter range",
                ANSWER_BYTES_MAX >> 20
            ))
        })?;
        Ok(())
    }
}
