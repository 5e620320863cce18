//! Messages of the wire protocol: `OP_MSG` with one document.

use super::bson::{BsonDocument, MalformedBson};

/// Maximum number of bytes of a message. Servers send at most 48 MB; no answer to a lookup is as long as this.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Bytes of the header: length of the message, request id, id of the answered request, code.
const HEADER_BYTES: usize = 16;
const OP_MSG: i32 = 2013;

/// Flag of a message that ends with a checksum.
const CHECKSUM_PRESENT: u32 = 1;
/// Lower flags change the meaning of a message. Higher ones may be ignored.
const REQUIRED_FLAGS: u32 = 0xFFFF;
const CHECKSUM_BYTES: usize = 4;

/// Encodes a command.
pub(super) fn encode_message(request_id: i32, command: &BsonDocument) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend_from_slice(&request_id.to_le_bytes());
    message.extend_from_slice(&0i32.to_le_bytes());
    message.extend_from_slice(&OP_MSG.to_le_bytes());
    // No flags, then a section with one document.
    message.extend_from_slice(&[0, 0, 0, 0, 0]);
    command.write(&mut message);
    let length = i32::try_from(message.len()).unwrap_or(i32::MAX);
    message[..4].copy_from_slice(&length.to_le_bytes());
    message
}

/// Returns the length of the message that begins with these bytes. `None`: more bytes are needed.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, MalformedBson> {
    let Some(length) = bytes.first_chunk::<4>() else {
        return Ok(None);
    };
    match usize::try_from(i32::from_le_bytes(*length)) {
        Ok(length) if length > MESSAGE_BYTES_MAX => Err(MalformedBson("it is longer than 4 MiB")),
        Ok(length) if length > HEADER_BYTES => Ok(Some(length)),
        _ => Err(MalformedBson("the server does not speak the protocol of MongoDB")),
    }
}

/// Decodes a message that takes up all bytes. Returns the id of the answered request and the document.
pub fn decode_message(bytes: &[u8]) -> Result<(i32, BsonDocument), MalformedBson> {
    let number = |at: usize| {
        let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
        bytes.map(|bytes| i32::from_le_bytes(*bytes))
    };
    let ends_early = MalformedBson("the message ends early");
    let answered = number(8).ok_or(ends_early)?;
    if number(12) != Some(OP_MSG) {
        return Err(MalformedBson("the message has another type than OP_MSG"));
    }
    let flags = number(HEADER_BYTES).ok_or(ends_early)? as u32;
    if flags & REQUIRED_FLAGS & !CHECKSUM_PRESENT != 0 {
        return Err(MalformedBson("the message has unknown flags"));
    }
    let end = match flags & CHECKSUM_PRESENT {
        0 => Some(bytes.len()),
        _ => bytes.len().checked_sub(CHECKSUM_BYTES),
    };
    let body = end.and_then(|end| bytes.get(HEADER_BYTES + 4..end)).ok_or(ends_early)?;
    match body.split_first() {
        Some((0, document)) => Ok((answered, BsonDocument::decode(document)?)),
        _ => Err(MalformedBson("the message has another section than a document")),
    }
}
