//! The seam to authentication and authorization: what the shard asks, not how it is decided.
//!
//! The binary supplies an `Access`; the shard never waits for it. What cannot be decided at once (a slow hash, a remote
//! service) is answered later through `Shard::authenticated`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use mqtt::{QoS, ReasonCode};

use crate::device::{Device, DeviceKey};

/// Who a session belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub client_id: Box<str>,
    pub user_name: Option<Box<str>>,
    pub address: IpAddr,
    pub is_superuser: bool,
}

/// What a CONNECT offers to prove who it is.
#[derive(Clone)]
pub struct Credentials {
    pub client_id: Box<str>,
    pub user_name: Option<Box<str>>,
    pub password: Option<Box<[u8]>>,
    pub address: IpAddr,
    /// Index of the listener in the configuration the driver was started with.
    pub listener: u16,
    /// Subject common name of a verified client certificate.
    pub certificate_common_name: Option<Box<str>>,
    /// The verified client certificate, in DER.
    pub certificate: Option<Box<[u8]>>,
    /// Authentication Method and Data of MQTT 5, for the enhanced exchange.
    pub method: Option<Box<str>>,
    pub data: Option<Box<[u8]>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("client_id", &self.client_id)
            .field("user_name", &self.user_name)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("address", &self.address)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// What is known of who connects before the connection has gone to its home.
#[derive(Clone, Copy)]
pub struct Offered<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// The verified client certificate, in DER.
    pub certificate: Option<&'a [u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthOutcome {
    Allow {
        is_superuser: bool,
        /// Authentication Data for the CONNACK or the last AUTH of an enhanced exchange.
        data: Option<Box<[u8]>>,
    },
    /// A device of the platform: its session has a namespace of its own (device.rs).
    Device(Box<Device>),
    /// The enhanced exchange goes on: send AUTH 0x18 with this data.
    Continue {
        data: Box<[u8]>,
    },
    Deny {
        reason: ReasonCode,
        because: &'static str,
    },
}

/// Supplied by the binary. Shared by all shards; must not block.
pub trait Access: Send + Sync {
    /// A decision if one can be had without waiting; otherwise the driver is asked through `Effect::Authenticate`.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<AuthOutcome>;

    /// Whether an Authentication Method can be used at all; otherwise CONNACK 0x8C [MQTT-4.12.0-1].
    fn knows_method(&self, method: &str) -> bool;

    /// The client id of the session that these credentials lead to, if that is not the one of CONNECT. It says which shard is the
    /// session's home.
    fn session_name(&self, _offered: &Offered<'_>) -> Option<Box<str>> {
        None
    }

    /// The rules as they apply to one session; `None` when they allow everything.
    fn session(&self, who: &Identity) -> Option<Arc<dyn SessionAccess>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeAccess {
    Denied,
    /// Every topic that the filter matches may be read.
    Allowed,
    /// Some topics that the filter matches may not: ask `may_receive` for each message.
    AllowedInPart,
}

/// The rules for one session. Topics and filters come without `$share/…/`, `$exclusive/`, `$delayed/…/`.
pub trait SessionAccess: Send + Sync {
    fn may_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool;
    fn may_subscribe(&self, filter: &str) -> SubscribeAccess;
    fn may_receive(&self, topic: &str) -> bool;

    /// Of a device's session, which has no other rights than to speak to the tap.
    fn device(&self) -> Option<DeviceKey> {
        None
    }
}

/// Everyone may do everything. For tests, the simulator and a server on a closed network.
#[derive(Debug, Default)]
pub struct OpenAccess;

impl Access for OpenAccess {
    fn authenticate_now(&self, _: &Credentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow {
            is_superuser: false,
            data: None,
        })
    }

    fn knows_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &Identity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}
