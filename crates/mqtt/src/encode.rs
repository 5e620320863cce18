//! Packets to bytes.

use crate::{Packet, ProtocolVersion, Publish};

/// What differs per subscriber in an MQTT 5 PUBLISH besides the packet identifier. Written before `Publish::properties`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishExtras<'a> {
    pub message_expiry_interval: Option<u32>,
    pub topic_alias: Option<u16>,
    pub subscription_identifiers: &'a [u32],
}

impl Packet<'_> {
    /// Appends the packet. In 3.1 and 3.1.1 properties and reason codes are left out.
    pub fn encode(&self, version: ProtocolVersion, out: &mut Vec<u8>) {
        let _ = (version, out);
        unimplemented!()
    }
}

/// Appends a PUBLISH and returns where, from the first byte of the packet, the two bytes of the packet identifier stand
/// (meaningless at QoS 0), so that one encoding can serve many subscribers.
pub fn encode_publish(
    publish: &Publish<'_>,
    extras: PublishExtras<'_>,
    version: ProtocolVersion,
    out: &mut Vec<u8>,
) -> usize {
    let _ = (publish, extras, version, out);
    unimplemented!()
}
