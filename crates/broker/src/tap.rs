//! What looks at the messages that are published and at what happens to clients: rules.
//!
//! A tap runs on the shard's own thread, between the acceptance of a message and its routing. What it takes, it may have to keep: then
//! the publisher's acknowledgement waits until the tap says that what it took in that tick is kept, as it waits for the journal.
//! A tap that cannot take more is the publisher's problem, not the tap's: MQTT 5 is told, others are not read from until it can.
//! Without a tap, or with one that wants nothing, this costs a look at one integer per message.

use std::net::SocketAddr;
use std::num::NonZeroU64;

use mqtt::{ProtocolVersion, QoS, ReasonCode};

use crate::device::DeviceKey;
use crate::effect::{DisconnectReason, DropReason, Now};

/// What a tap wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants(u16);

impl Wants {
    pub const NOTHING: Wants = Wants(0);
    pub const MESSAGES: Wants = Wants(1);
    pub const CONNECTED: Wants = Wants(1 << 1);
    pub const DISCONNECTED: Wants = Wants(1 << 2);
    pub const CONNACK: Wants = Wants(1 << 3);
    pub const AUTHORIZED: Wants = Wants(1 << 4);
    pub const SUBSCRIBED: Wants = Wants(1 << 5);
    pub const UNSUBSCRIBED: Wants = Wants(1 << 6);
    pub const DROPPED: Wants = Wants(1 << 7);
    pub const DELIVERED: Wants = Wants(1 << 8);
    pub const ACKED: Wants = Wants(1 << 9);
    pub const DELIVERY_DROPPED: Wants = Wants(1 << 10);
    pub const AUTHENTICATED: Wants = Wants(1 << 11);
    pub const PING: Wants = Wants(1 << 12);
    /// It cannot take all that it may be given: to be asked first.
    pub const TO_BE_ASKED: Wants = Wants(1 << 15);

    /// What becomes of a message, for which its provenance has to be kept beside it.
    pub(crate) const FATES: Wants =
        Wants(Wants::DROPPED.0 | Wants::DELIVERED.0 | Wants::ACKED.0 | Wants::DELIVERY_DROPPED.0);

    /// Whether any of these is wanted.
    #[inline]
    pub fn has(self, other: Wants) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for Wants {
    type Output = Wants;

    fn bitor(self, other: Wants) -> Wants {
        Wants(self.0 | other.0)
    }
}

/// Who did it, or to whom it was done.
#[derive(Clone, Copy, Debug)]
pub struct TapClient<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub address: SocketAddr,
    /// Index of the listener in the configuration the driver was started with; None where it is not known.
    pub listener: Option<u16>,
    pub version: ProtocolVersion,
}

/// A message that has been accepted and is about to be routed, or on its way to a subscriber.
#[derive(Clone, Copy, Debug)]
pub struct TapMessage<'a> {
    /// Tells it from all others of the node, roughly in their order. 0 if it is not known: the message came before such events were
    /// wanted.
    pub id: u128,
    /// When it was published, in Unix milliseconds; 0 if that is not known.
    pub received_at_ms: u64,
    /// Who published it. None for messages of the server and its operator, and where that is not known.
    pub client: Option<TapClient<'a>>,
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// The MQTT 5 properties that are forwarded, as wire bytes.
    pub properties: &'a [u8],
    /// What is left of its Message Expiry Interval, in seconds.
    pub expiry_s: Option<u32>,
    pub qos: QoS,
    pub retain: bool,
    pub is_duplicate: bool,
    /// `MadeMessage::mark`, if the tap has made it.
    pub mark: u64,
}

/// A message that a tap publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeMessage {
    pub topic: String,
    pub payload: Vec<u8>,
    /// MQTT 5 properties that are forwarded, as wire bytes.
    pub properties: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_s: Option<u32>,
    /// So that the tap knows it when it sees it: it is given what it makes too. Not 0.
    pub mark: u64,
}

/// What became of a message in a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tapped {
    /// Nothing that anybody has to wait for.
    Passed,
    /// Taken, and to be kept before its publisher is told that it has been received.
    Kept(Receipt),
}

/// For what a tap has taken. Within a lane, what has a smaller number is kept no later than what has a greater one; what is to be
/// waited for together is in one lane, what is not should not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt(NonZeroU64);

const NUMBER_BITS: u32 = 48;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

impl Receipt {
    /// Numbers begin with 1; those of a shard that makes a million a second last for nine years.
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

    /// Not before any other of its lane.
    pub(crate) fn end_of_lane(self) -> Receipt {
        Receipt::new(self.lane(), NUMBER_MAX)
    }
}

/// What a CONNACK grants; of one that refuses, what would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub clean_start: bool,
    pub keep_alive_s: u16,
    pub expiry_s: u32,
}

/// What happened to a client or to a message of it.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    Connected {
        session_present: bool,
        clean_start: bool,
        keep_alive_s: u16,
        expiry_s: u32,
        is_bridge: bool,
        connected_at_ms: u64,
        /// Of CONNECT, as wire bytes.
        properties: &'a [u8],
    },
    Disconnected {
        reason: DisconnectReason,
        /// Of the DISCONNECT that ended it, from either side; also where the version has none. None: the connection was lost.
        code: Option<ReasonCode>,
        /// Another connection took the client id over with a clean start.
        is_discarded: bool,
        because: &'a str,
        connected_at_ms: u64,
        /// Of the client's DISCONNECT, as wire bytes.
        properties: &'a [u8],
    },
    /// A CONNACK, also one that refuses.
    ConnAck {
        reason: ReasonCode,
        /// None if there was no CONNECT that could be read.
        granted: Option<Granted>,
        /// Of CONNECT, as wire bytes.
        properties: &'a [u8],
    },
    /// A client asked for the right to do something.
    Authorized {
        is_publish: bool,
        topic: &'a str,
        is_allowed: bool,
    },
    Subscribed {
        filter: &'a str,
        qos: QoS,
        /// Of SUBSCRIBE, as wire bytes.
        properties: &'a [u8],
    },
    Unsubscribed {
        filter: &'a str,
        /// Of the subscription.
        qos: QoS,
        /// Of UNSUBSCRIBE, as wire bytes.
        properties: &'a [u8],
    },
    /// An authenticator has decided about a CONNECT, or about a client that authenticates anew.
    Authenticated {
        reason: ReasonCode,
        is_superuser: bool,
        /// It gave neither user name nor password.
        is_anonymous: bool,
    },
    Ping {
        clean_start: bool,
        keep_alive_s: u16,
        expiry_s: u32,
        connected_at_ms: u64,
    },
    /// Nobody wanted it, or it was not accepted.
    Dropped {
        message: TapMessage<'a>,
        reason: DropReason,
    },
    /// Sent to the client, for the first time or again.
    Delivered { message: TapMessage<'a> },
    /// The client has answered with PUBACK or PUBREC.
    Acked {
        message: TapMessage<'a>,
        /// Of the answer, as wire bytes.
        properties: &'a [u8],
    },
    /// Given up for this client.
    DeliveryDropped {
        /// None if it is in the journal only.
        message: Option<TapMessage<'a>>,
        reason: DropReason,
    },
}

impl<'a> Happening<'a> {
    /// The message that it is about.
    pub fn message(&self) -> Option<&TapMessage<'a>> {
        match self {
            Happening::Dropped { message, .. }
            | Happening::Delivered { message }
            | Happening::Acked { message, .. } => Some(message),
            Happening::DeliveryDropped { message, .. } => message.as_ref(),
            _ => None,
        }
    }
}

/// What a device publishes. It goes to the tap and nowhere else.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMessage<'a> {
    pub device: DeviceKey,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    /// Whether the device can be told what is wrong with it.
    pub is_v5: bool,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceTaken {
    /// Taken; with a receipt, to be kept before the device is told that it has been received.
    Taken(Option<Receipt>),
    Refused(ReasonCode),
    /// The device is over a limit: the message is dropped, not acknowledged, and the connection ends.
    Ends {
        reason: ReasonCode,
        because: &'static str,
    },
}

/// What happened to the connection of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceHappening {
    Connected { is_v5: bool },
    Disconnected,
    Pinged,
}

/// One for each shard, on its thread. Must not block.
pub trait Tap: Send {
    /// The beginning of a tick: what it wants until the next one.
    fn begin_tick(&mut self, now: Now) -> Wants;

    /// Whether it would have to refuse this message. Asked while it wants `TO_BE_ASKED`.
    fn is_full(&mut self, now: Now, message: &TapMessage<'_>) -> bool;

    fn message(&mut self, now: Now, message: &TapMessage<'_>) -> Tapped;

    fn happened(&mut self, now: Now, client: TapClient<'_>, what: &Happening<'_>);

    /// A receipt for both: kept when they are.
    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt;

    /// What it has made since it was asked last; it is published at once, and an acknowledgement of what it was made of waits for
    /// it too. What is made of what was made has to come to an end.
    fn take_made(&mut self) -> Vec<MadeMessage>;

    /// Whether it can take nothing of devices now. Asked while it wants `TO_BE_ASKED`.
    fn holds_devices(&mut self) -> bool {
        false
    }

    fn device_message(&mut self, _now: Now, _message: &DeviceMessage<'_>) -> DeviceTaken {
        DeviceTaken::Refused(ReasonCode::TopicNameInvalid)
    }

    /// The QoS that is granted; `None`: the filter is none of a device's.
    fn device_subscribe(&mut self, _now: Now, _device: DeviceKey, _filter: &str, _qos: QoS) -> Option<QoS> {
        None
    }

    /// False if there was no such subscription.
    fn device_unsubscribe(&mut self, _now: Now, _device: DeviceKey, _filter: &str) -> bool {
        false
    }

    fn device_happened(&mut self, _now: Now, _device: DeviceKey, _what: DeviceHappening) {}

    /// The device has acknowledged a message that it was sent at QoS 1.
    fn device_acked(&mut self, _now: Now, _device: DeviceKey, _topic: &str, _payload: &[u8]) {}

    /// The end of a tick in which it was told something.
    fn end_tick(&mut self);

    /// Up to which number all of a lane is kept.
    fn kept(&mut self, lane: u16) -> u64;
}
