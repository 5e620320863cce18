//! Questions to a source that the test answers.
