//! The buffers into which a worker reads from its sockets.

/// Space before the read data, for the start of a packet that was received earlier.
pub(crate) const HEADROOM_BYTES: usize = 4 * 1024;

/// Maximum number of bytes per read.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// Maximum plaintext of one TLS record.
pub(crate) const PLAIN_BYTES: usize = 16 * 1024;

/// The worker's buffers. A read fills them from `HEADROOM_BYTES` on.
pub(crate) struct ReadBuffers {
    pub(crate) input: Vec<u8>,
    pub(crate) plain: Vec<u8>,
}

impl ReadBuffers {
    pub(crate) fn new() -> ReadBuffers {
        // The plaintext buffer is allocated for the first TLS connection.
        ReadBuffers {
            input: vec![0; HEADROOM_BYTES + READ_BYTES],
            plain: Vec::new(),
        }
    }
}
