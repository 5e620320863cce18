//! What of the broker's state outlives the process: the records that go to the journal, and the way back from them.

pub mod record;
