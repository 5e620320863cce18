//! The inbox: a component behind the broker that receives the messages of some clients, instead of subscribers.
//!
//! The authenticator decides which clients use the inbox. They share the listeners with other clients, but have a
//! namespace of their own: their messages go only to the inbox, and they receive only messages that are addressed to
//! them ([`crate::InboxSession::send`]). The inbox also handles their subscriptions.
//!
//! Each shard has its own inbox, on its thread. An acknowledgement waits until the inbox reports the message as stored.
//! A full inbox causes back-pressure: MQTT 5 clients receive a reason code, and reading from others is paused.

use mqtt::{QoS, ReasonCode};

use crate::effect::Now;

/// Lane of the receipts of the inbox. Lanes of taps are lower.
pub(crate) const INBOX_LANE: u16 = u16::MAX;

/// Id of a client of the inbox. The authenticator assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxKey(pub u128);

/// A client that the authenticator has assigned to the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxClient {
    pub key: InboxKey,
    /// Client id of the session. The authenticator ensures that it is unique.
    pub client_id: Box<str>,
    /// Shown to operators instead of the user name, which may be a secret.
    pub name: Box<str>,
}

/// A message for the inbox.
#[derive(Clone, Copy, Debug)]
pub struct InboxMessage<'a> {
    pub from: InboxKey,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    /// The client can receive a reason code.
    pub is_v5: bool,
}

/// Result of passing a message to the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxResult {
    /// Accepted. With a number, the acknowledgement waits until `Inbox::stored_up_to` returns at least this number.
    Accepted(Option<u64>),
    Refused(ReasonCode),
    /// The client exceeds a limit: the message is dropped without an acknowledgement, and the connection is closed.
    Disconnect {
        reason: ReasonCode,
        detail: &'static str,
    },
}

/// An event of the connection of an inbox client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxEvent {
    Connected { is_v5: bool },
    Disconnected,
    Pinged,
}

/// The inbox of a shard. Must not block.
pub trait Inbox: Send {
    /// Starts a tick. Returns whether the inbox cannot accept messages until the next one.
    fn begin_tick(&mut self, now: Now) -> bool;

    fn message(&mut self, now: Now, message: &InboxMessage<'_>) -> InboxResult;

    /// Returns the granted QoS; `None` if the client may not subscribe to the filter.
    fn subscribe(&mut self, now: Now, client: InboxKey, filter: &str, qos: QoS) -> Option<QoS>;

    /// Returns false if there was no such subscription.
    fn unsubscribe(&mut self, now: Now, client: InboxKey, filter: &str) -> bool;

    fn connection_event(&mut self, now: Now, client: InboxKey, event: InboxEvent);

    /// The client has acknowledged a QoS 1 message.
    fn acknowledged(&mut self, client: InboxKey, topic: &str, payload: &[u8]);

    /// Ends a tick in which the inbox or the tap was called.
    fn end_tick(&mut self);

    /// Returns the number up to which all messages are stored. Numbers start with 1.
    fn stored_up_to(&mut self) -> u64;
}
