//! Tags of the record types (first byte), and bits of flag bytes.

pub(super) const BOOT: u8 = 1;
pub(super) const MESSAGE: u8 = 2;
pub(super) const QUEUED: u8 = 3;
pub(super) const ROUTED: u8 = 4;
pub(super) const SETTLED: u8 = 5;
pub(super) const PACKET_ID_FREED: u8 = 6;
pub(super) const SESSION: u8 = 7;
pub(super) const ENTRIES: u8 = 8;
pub(super) const CONNECTED: u8 = 9;
pub(super) const DISCONNECTED: u8 = 10;
pub(super) const WILL_PUBLISHED: u8 = 11;
pub(super) const ENDED: u8 = 12;
pub(super) const SUBSCRIBED: u8 = 13;
pub(super) const UNSUBSCRIBED: u8 = 14;
pub(super) const GROUP: u8 = 15;
pub(super) const GROUP_ENTRIES: u8 = 16;
pub(super) const GROUP_ENDED: u8 = 17;
pub(super) const RETURNED: u8 = 18;
pub(super) const GROUP_DROPPED: u8 = 19;
pub(super) const RETAINED: u8 = 20;
pub(super) const RETAINED_CLEARED: u8 = 21;
pub(super) const DELAYED: u8 = 22;
pub(super) const DELAYED_DONE: u8 = 23;
pub(super) const CHECKPOINT: u8 = 24;
pub(super) const HELD_DROPPED: u8 = 25;
pub(super) const BACK: u8 = 26;
pub(super) const PAGE: u8 = 27;
pub(super) const PAGE_LOADED: u8 = 28;
pub(super) const PAGES: u8 = 29;
pub(super) const REPLAYED: u8 = 30;
pub(super) const DAMAGED: u8 = 31;
pub(super) const TIME: u8 = 32;
/// `TIME` with the difference of the system's clock. Since record version 5.
pub(super) const TIME_AFTER_STEP: u8 = 38;
/// `MESSAGE` with an owner.
pub(super) const OWNED_MESSAGE: u8 = 33;
/// Records with the sizes of messages, since record version 3.
pub(super) const SIZED_QUEUED: u8 = 34;
pub(super) const SIZED_PAGES: u8 = 35;
pub(super) const SIZED_GROUP_ENTRIES: u8 = 36;
pub(super) const SIZED_RETURNED: u8 = 37;

/// Mask of the QoS in the flags of a message, target or entry.
pub(super) const QOS: u8 = 0b11;
pub(super) const RETAIN: u8 = 1 << 2;

pub(super) const HAS_EXPIRY: u8 = 1 << 3;
pub(super) const HAS_DUE: u8 = 1 << 4;
pub(super) const IS_RETAINED: u8 = 1 << 5;
pub(super) const HAS_PUBLISHER: u8 = 1 << 6;
pub(super) const HAS_PROVENANCE: u8 = 1 << 7;

/// Flags of `ConnectSettings`.
pub(super) const IS_SUPERUSER: u8 = 1;
pub(super) const IS_BRIDGE: u8 = 1 << 1;
pub(super) const HAS_USER_NAME: u8 = 1 << 2;
/// Since record version 2.
pub(super) const HAS_ADDRESS: u8 = 1 << 3;
/// Since record version 4.
pub(super) const HAS_GRANT: u8 = 1 << 4;
/// Since record version 5.
pub(super) const HAS_MOUNTPOINT: u8 = 1 << 5;

pub(super) const IS_GROUP: u8 = 1 << 3;
pub(super) const HAS_GROUP: u8 = 1 << 4;
pub(super) const HAS_IDENTIFIERS: u8 = 1 << 5;
pub(super) const IS_RELEASED: u8 = 1 << 6;
/// The size of the message follows the entry. Since record version 3.
pub(super) const HAS_SIZE: u8 = 1 << 7;
