//! Taps: observers of published messages and client events. Rules are a tap.
//!
//! A tap runs on the shard's thread, after a message is accepted and before it is routed. If the tap must store the
//! message, the publisher's acknowledgement waits until the tap reports it as stored, as it waits for the journal. A
//! full tap causes back-pressure: MQTT 5 publishers receive a reason code, and reading from other publishers is paused.
//! Without a tap, or with one that wants no events, the cost is a check of one integer per message.

use std::net::SocketAddr;
use std::num::NonZeroU64;

use mqtt::{ProtocolVersion, QoS, ReasonCode};

use crate::access::LoginGrant;
use crate::effect::{DisconnectReason, DropReason, Now};
use crate::message_limits::{LimitedMessage, MessageLimits};

/// Bit set of the events that a tap wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapEventMask(u16);

impl TapEventMask {
    pub const NOTHING: TapEventMask = TapEventMask(0);
    pub const MESSAGES: TapEventMask = TapEventMask(1);
    pub const CONNECTED: TapEventMask = TapEventMask(1 << 1);
    pub const DISCONNECTED: TapEventMask = TapEventMask(1 << 2);
    pub const CONNACK: TapEventMask = TapEventMask(1 << 3);
    pub const AUTHORIZED: TapEventMask = TapEventMask(1 << 4);
    pub const SUBSCRIBED: TapEventMask = TapEventMask(1 << 5);
    pub const UNSUBSCRIBED: TapEventMask = TapEventMask(1 << 6);
    pub const DROPPED: TapEventMask = TapEventMask(1 << 7);
    pub const DELIVERED: TapEventMask = TapEventMask(1 << 8);
    pub const ACKED: TapEventMask = TapEventMask(1 << 9);
    pub const DELIVERY_DROPPED: TapEventMask = TapEventMask(1 << 10);
    pub const AUTHENTICATED: TapEventMask = TapEventMask(1 << 11);
    pub const PING: TapEventMask = TapEventMask(1 << 12);
    /// The tap may be full, so it must be asked before a message is accepted.
    pub const CHECK_FULL: TapEventMask = TapEventMask(1 << 15);

    /// Events about what happens to a message. They require that its provenance is stored with it.
    pub(crate) const MESSAGE_EVENTS: TapEventMask = TapEventMask(
        TapEventMask::DROPPED.0 | TapEventMask::DELIVERED.0 | TapEventMask::ACKED.0 | TapEventMask::DELIVERY_DROPPED.0,
    );

    /// Returns whether any of these events is wanted.
    #[inline]
    pub fn has(self, other: TapEventMask) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for TapEventMask {
    type Output = TapEventMask;

    fn bitor(self, other: TapEventMask) -> TapEventMask {
        TapEventMask(self.0 | other.0)
    }
}

/// The client of an event.
#[derive(Clone, Copy, Debug)]
pub struct TapClient<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub address: SocketAddr,
    /// Index of the listener in the configuration with which the driver was started; `None` if it is unknown.
    pub listener: Option<u16>,
    pub version: ProtocolVersion,
    /// Has the attributes of the client. `None` for the publisher of a message that was stored before.
    pub grant: &'a LoginGrant,
    /// Prefix of the client's topics, if it is known.
    pub mountpoint: Option<&'a str>,
}

/// A message that has been accepted and will be routed, or that is sent to a subscriber.
#[derive(Clone, Copy, Debug)]
pub struct TapMessage<'a> {
    /// Id that is unique on the node and roughly ordered. 0 if it is unknown, because the message arrived before a tap
    /// wanted such events.
    pub id: u128,
    /// Time of publication in Unix milliseconds; 0 if it is unknown.
    pub received_at_ms: u64,
    /// The publisher. `None` for messages of the server and its operator, and if it is unknown.
    pub client: Option<TapClient<'a>>,
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// MQTT 5 properties that are forwarded, in wire format.
    pub properties: &'a [u8],
    /// Remaining Message Expiry Interval in seconds.
    pub expiry_s: Option<u32>,
    pub qos: QoS,
    pub retain: bool,
    pub is_duplicate: bool,
    /// `TapPublication::mark` if the tap has created the message.
    pub mark: u64,
}

/// A message that a tap publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapPublication {
    pub topic: String,
    pub payload: Vec<u8>,
    /// MQTT 5 properties that are forwarded, in wire format.
    pub properties: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_s: Option<u32>,
    /// Identifies the message to the tap, which also receives the messages that it creates. Not 0.
    pub mark: u64,
}

impl TapPublication {
    /// Returns the limited parts.
    pub fn limited(&self) -> LimitedMessage<'_> {
        LimitedMessage {
            topic: &self.topic,
            payload_bytes: self.payload.len(),
            property_bytes: self.properties.len(),
            qos: self.qos,
            retain: self.retain,
        }
    }
}

/// Result of passing a message to a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapResult {
    /// No acknowledgement waits for the tap.
    AckNow,
    /// The acknowledgement waits until the tap has stored the message.
    AckWhenStored(Receipt),
}

/// Receipt for a message that a tap has received. Within a lane, receipts are stored in ascending order of their
/// numbers. Independent messages should be in different lanes, so that they do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt(NonZeroU64);

const NUMBER_BITS: u32 = 48;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

impl Receipt {
    /// Numbers start with 1. At a million per second they last for nine years.
    pub fn new(lane: u16, number: u64) -> Receipt {
        let bits = u64::from(lane) << NUMBER_BITS | number.clamp(1, NUMBER_MAX);
        Receipt(NonZeroU64::new(bits).expect("the number is at least 1"))
    }

    pub fn lane(self) -> u16 {
        (self.0.get() >> NUMBER_BITS) as u16
    }

    pub fn number(self) -> u64 {
        self.0.get() & NUMBER_MAX
    }

    /// Returns the highest receipt of the lane.
    pub(crate) fn lane_end(self) -> Receipt {
        Receipt::new(self.lane(), NUMBER_MAX)
    }
}

/// A result of work that a tap did on other threads. Its records belong to this tick; [`Tap::take_publications`]
/// returns its messages.
#[derive(Default)]
pub struct OffloadedResult {
    /// Receipt for the records.
    pub receipt: Option<Receipt>,
    /// Called when the records and the messages are durable.
    pub on_durable: Option<Box<dyn FnOnce() + Send>>,
}

/// Values that CONNACK grants. If CONNECT is rejected, the values that it would have granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedConnect {
    pub clean_start: bool,
    pub keep_alive_s: u16,
    pub expiry_s: u32,
}

/// An event of a client or of one of its messages.
#[derive(Clone, Copy, Debug)]
pub enum TapEvent<'a> {
    Connected {
        session_present: bool,
        clean_start: bool,
        keep_alive_s: u16,
        expiry_s: u32,
        is_bridge: bool,
        connected_at_ms: u64,
        /// Properties of CONNECT in wire format.
        properties: &'a [u8],
    },
    Disconnected {
        reason: DisconnectReason,
        /// Reason code of the DISCONNECT of either side, also for versions that have none on the wire. `None` if the
        /// connection was lost.
        code: Option<ReasonCode>,
        /// Another connection took over the client id with Clean Start.
        is_discarded: bool,
        detail: &'a str,
        connected_at_ms: u64,
        /// Properties of the client's DISCONNECT in wire format.
        properties: &'a [u8],
    },
    /// A CONNACK was sent, with success or failure.
    ConnAck {
        reason: ReasonCode,
        /// `None` if CONNECT could not be decoded.
        granted: Option<GrantedConnect>,
        /// Properties of CONNECT in wire format.
        properties: &'a [u8],
    },
    /// A publication or subscription was authorized or rejected.
    Authorized {
        is_publish: bool,
        topic: &'a str,
        is_allowed: bool,
    },
    Subscribed {
        filter: &'a str,
        qos: QoS,
        /// Properties of SUBSCRIBE in wire format.
        properties: &'a [u8],
    },
    Unsubscribed {
        filter: &'a str,
        /// QoS of the removed subscription.
        qos: QoS,
        /// Properties of UNSUBSCRIBE in wire format.
        properties: &'a [u8],
    },
    /// An authenticator has decided about a CONNECT or a re-authentication.
    Authenticated {
        reason: ReasonCode,
        is_superuser: bool,
        /// The client sent neither user name nor password.
        is_anonymous: bool,
    },
    Ping {
        clean_start: bool,
        keep_alive_s: u16,
        expiry_s: u32,
        connected_at_ms: u64,
    },
    /// The message had no subscriber, or was rejected.
    Dropped {
        message: TapMessage<'a>,
        reason: DropReason,
    },
    /// The message was sent to the client, for the first time or repeatedly.
    Delivered { message: TapMessage<'a> },
    /// The client has sent PUBACK or PUBREC.
    Acked {
        message: TapMessage<'a>,
        /// Properties of that packet in wire format.
        properties: &'a [u8],
    },
    /// The message was dropped for this client.
    DeliveryDropped {
        /// `None` if the message is only in the journal.
        message: Option<TapMessage<'a>>,
        reason: DropReason,
    },
}

impl<'a> TapEvent<'a> {
    /// Returns the message of the event.
    pub fn message(&self) -> Option<&TapMessage<'a>> {
        match self {
            TapEvent::Dropped { message, .. } | TapEvent::Delivered { message } | TapEvent::Acked { message, .. } => {
                Some(message)
            }
            TapEvent::DeliveryDropped { message, .. } => message.as_ref(),
            _ => None,
        }
    }
}

/// A tap. Each shard has its own, on its thread. Must not block.
pub trait Tap: Send {
    /// Sets the limits of the messages that the tap creates. The shard drops messages beyond them.
    fn set_message_limits(&mut self, _limits: MessageLimits) {}

    /// Starts a tick. Returns the events that the tap wants until the next one.
    fn begin_tick(&mut self, now: Now) -> TapEventMask;

    /// Returns whether the tap would reject this message. Called while it wants `CHECK_FULL`.
    fn is_full(&mut self, now: Now, message: &TapMessage<'_>) -> bool;

    fn message(&mut self, now: Now, message: &TapMessage<'_>) -> TapResult;

    fn client_event(&mut self, now: Now, client: TapClient<'_>, what: &TapEvent<'_>);

    /// Combines two receipts into one, which is stored when both are.
    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt;

    /// Returns the messages that the tap has created since the last call. They are published immediately, and the
    /// acknowledgement of the original message waits for them as well. The tap receives them too, and must not create
    /// messages endlessly.
    fn take_publications(&mut self) -> Vec<TapPublication>;

    /// Returns whether results of work on other threads are outstanding. The driver is woken when one is ready.
    fn is_offloading(&self) -> bool {
        false
    }

    /// Returns the next result. Its messages are published before the next call.
    fn take_offloaded(&mut self, _now: Now) -> Option<OffloadedResult> {
        None
    }

    /// Ends a tick in which the tap was called.
    fn end_tick(&mut self);

    /// Returns the number up to which all messages of a lane are stored.
    fn stored_up_to(&mut self, lane: u16) -> u64;
}
