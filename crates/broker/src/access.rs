//! Interface to authentication and authorization: which questions the shard asks, not how they are decided.
//!
//! The binary implements `AccessControl`. The shard never waits for it: a decision that takes time (a slow hash, a
//! remote service) is delivered later through `Shard::authenticated`.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use mqtt::{QoS, ReasonCode};

use crate::inbox::{InboxClient, InboxKey};
use crate::mountpoint::Mountpoint;

/// Identity of an accepted client.
#[derive(Clone, Copy)]
pub(crate) struct AcceptedClient<'a> {
    pub client_id: &'a str,
    pub is_superuser: bool,
    pub grant: &'a LoginGrant,
    /// Set for a client of the inbox.
    pub inbox_key: Option<InboxKey>,
}

impl<'a> AcceptedClient<'a> {
    /// Returns the identity of a client that does not use the inbox.
    pub(crate) fn of(client_id: &'a str, is_superuser: bool) -> AcceptedClient<'a> {
        AcceptedClient {
            client_id,
            is_superuser,
            grant: &LoginGrant::None,
            inbox_key: None,
        }
    }
}

/// Owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    pub client_id: Box<str>,
    pub user_name: Option<Box<str>>,
    pub address: IpAddr,
    pub is_superuser: bool,
    pub grant: LoginGrant,
    /// Prefix of the client's topics.
    pub mountpoint: Option<Mountpoint>,
}

/// Credentials of a CONNECT or AUTH.
#[derive(Clone)]
pub struct ConnectCredentials {
    pub client_id: Box<str>,
    /// User name of CONNECT. At the start of a re-authentication, that of the session.
    pub user_name: Option<Box<str>>,
    pub password: Option<Box<[u8]>>,
    pub address: IpAddr,
    /// Index of the listener in the configuration with which the driver was started.
    pub listener: u16,
    /// Subject common name of the verified client certificate.
    pub certificate_common_name: Option<Box<str>>,
    /// The verified client certificate, in DER.
    pub certificate: Option<Box<[u8]>>,
    /// Authentication Method and Authentication Data of MQTT 5, for enhanced authentication.
    pub method: Option<Box<str>>,
    pub data: Option<Box<[u8]>>,
    /// Size of the CONNECT, which the connection stores until the decision.
    pub packet_bytes: usize,
    /// Grant of the session that a re-authentication belongs to.
    pub session_grant: LoginGrant,
    /// State of the exchange that an AUTH continues. `None` for CONNECT and for the start of a re-authentication.
    pub exchange: Option<AuthExchange>,
}

impl ConnectCredentials {
    /// Returns the memory that it occupies, without the CONNECT and the state of an exchange.
    pub fn memory_bytes(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let bytes = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        size_of::<ConnectCredentials>()
            + self.client_id.len()
            + text(&self.user_name)
            + bytes(&self.password)
            + text(&self.certificate_common_name)
            + bytes(&self.certificate)
            + text(&self.method)
            + bytes(&self.data)
    }
}

impl fmt::Debug for ConnectCredentials {
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

/// State of an enhanced authentication between two packets of the client. The authenticator bounds its size. It ends
/// with the connection at the latest.
#[derive(Clone)]
pub struct AuthExchange(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for AuthExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthExchange(..)")
    }
}

impl PartialEq for AuthExchange {
    fn eq(&self, other: &AuthExchange) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AuthExchange {}

/// Fields of a CONNECT that determine the home shard, before the connection moves there.
#[derive(Clone, Copy)]
pub struct ConnectIdentity<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// The verified client certificate, in DER.
    pub certificate: Option<&'a [u8]>,
    /// Index of the listener in the configuration with which the driver was started.
    pub listener: u16,
}

/// Data of the authenticator about a login. The shard stores it with the session and does not read it.
pub trait LoginData: Any + Send + Sync {
    /// Returns names and values that the authenticator knows about the client, for taps.
    fn attributes(&self) -> Vec<(&str, &str)> {
        Vec::new()
    }

    /// Returns the grant of a data stream of the client, which has a session of its own. `None` if several sessions can
    /// use the same data.
    fn for_data_stream(&self) -> Option<LoginGrant> {
        None
    }
}

/// Data of the login of a session, for access rules and taps.
#[derive(Clone, Default)]
pub enum LoginGrant {
    /// The access rules depend only on the other fields of the identity.
    #[default]
    None,
    Of(Arc<dyn LoginData>),
    /// The login had a grant, but the server was restarted since. The next login has a new one.
    Forgotten,
}

impl LoginGrant {
    /// Returns whether the login has, or had, a grant.
    pub fn is_some(&self) -> bool {
        !matches!(self, LoginGrant::None)
    }

    /// Returns the grant of a data stream of the client.
    pub(crate) fn for_data_stream(&self) -> LoginGrant {
        let own = match self {
            LoginGrant::Of(data) => data.for_data_stream(),
            LoginGrant::None | LoginGrant::Forgotten => None,
        };
        own.unwrap_or_else(|| self.clone())
    }

    /// Returns the data of the login. `None` if it has another type, or is unknown.
    pub fn data<T: LoginData>(&self) -> Option<&T> {
        match self {
            LoginGrant::Of(data) => (&**data as &dyn Any).downcast_ref(),
            LoginGrant::None | LoginGrant::Forgotten => None,
        }
    }

    /// Returns the attributes of the client. Empty if it has none, and after a restart until its next login.
    pub fn attributes(&self) -> Vec<(&str, &str)> {
        match self {
            LoginGrant::Of(data) => data.attributes(),
            LoginGrant::None | LoginGrant::Forgotten => Vec::new(),
        }
    }

    /// Returns the bytes of the names and values of the attributes.
    pub(crate) fn attribute_bytes(&self) -> usize {
        let attributes = self.attributes().into_iter();
        attributes.map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl fmt::Debug for LoginGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoginGrant::None => "None",
            LoginGrant::Of(_) => "Of(..)",
            LoginGrant::Forgotten => "Forgotten",
        })
    }
}

impl PartialEq for LoginGrant {
    fn eq(&self, other: &LoginGrant) -> bool {
        match (self, other) {
            (LoginGrant::None, LoginGrant::None) | (LoginGrant::Forgotten, LoginGrant::Forgotten) => true,
            (LoginGrant::Of(this), LoginGrant::Of(that)) => Arc::ptr_eq(this, that),
            _ => false,
        }
    }
}

impl Eq for LoginGrant {}

/// An authenticated client that does not use the inbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLogin {
    pub is_superuser: bool,
    /// User name of the session, if it differs from that of CONNECT.
    pub user_name: Option<Box<str>>,
    /// The server disconnects the client at this time, in Unix milliseconds.
    pub expires_at_unix_ms: Option<u64>,
    pub grant: LoginGrant,
    /// Prefix of the client's topics.
    pub mountpoint: Option<Mountpoint>,
    /// Authentication Data for CONNACK, or for the last AUTH of an exchange.
    pub data: Option<Box<[u8]>>,
}

/// An action of a client that another system may have to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessRequest<'a> {
    /// The topic is without `$delayed/…/`.
    Publish { topic: &'a str, qos: QoS, retain: bool },
    /// The filter is without `$share/…/` and `$exclusive/`.
    Subscribe { filter: &'a str, qos: QoS },
}

/// A question to another system. The shard passes it on with `Effect::Authorize` and does not read it. Whoever answers
/// it stores the answer with the login, where the access rules of the session find it.
pub struct AccessQuestion(pub Box<dyn Any + Send>);

impl fmt::Debug for AccessQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessQuestion(..)")
    }
}

/// The next step for an authenticated client.
#[derive(Debug)]
pub enum AdmissionStep {
    Admit,
    /// Continue after the answer.
    Ask(AccessQuestion),
    Deny {
        reason: ReasonCode,
        detail: &'static str,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthOutcome {
    Allow(Box<ClientLogin>),
    /// The client uses the inbox. Its session has a separate namespace (inbox.rs).
    Inbox(Box<InboxClient>),
    /// Continue the enhanced authentication: send AUTH 0x18 with this data.
    Continue {
        data: Box<[u8]>,
        /// Passed to the authenticator with the next AUTH.
        exchange: Option<AuthExchange>,
    },
    Deny {
        reason: ReasonCode,
        detail: &'static str,
    },
}

/// Implemented by the binary. Shared by all shards; must not block.
pub trait AccessControl: Send + Sync {
    /// Decides immediately if that is possible without waiting. Otherwise the shard emits `Effect::Authenticate`.
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome>;

    /// Returns whether an Authentication Method is configured. If not, CONNACK has reason code 0x8C [MQTT-4.12.0-1].
    fn supports_auth_method(&self, method: &str) -> bool;

    /// Returns the client id of the session if it differs from that of CONNECT. It determines the home shard.
    fn session_name(&self, _offered: &ConnectIdentity<'_>) -> Option<Box<str>> {
        None
    }

    /// Returns the client id that replaces that of CONNECT for a client that does not use the inbox. `session_name`
    /// returns the same one.
    fn assigned_client_id(&self, _offered: &ConnectIdentity<'_>) -> Option<Box<str>> {
        None
    }

    /// Returns the user name that logs, events and the list of rejected clients show. The user name of an inbox client
    /// can be its secret.
    fn shown_user_name(&self, user_name: &str) -> Box<str> {
        user_name.into()
    }

    /// Returns whether each login has a grant. Then the rights of a stored session without one are unknown.
    fn requires_grants(&self) -> bool {
        false
    }

    /// Returns whether `admission` must be called before a client with this grant gets its session.
    fn must_prepare(&self, _grant: &LoginGrant) -> bool {
        false
    }

    /// Returns the next step for a client that must be prepared. `requests` are its will, and the filters of the
    /// session that it continues: all of them must be decided before the client is admitted.
    fn admission(&self, _who: &ClientIdentity, _requests: &[AccessRequest<'_>]) -> AdmissionStep {
        AdmissionStep::Admit
    }

    /// Returns the grant of a session whose client has authenticated again.
    fn renewed_grant(&self, _old: &LoginGrant, new: LoginGrant) -> LoginGrant {
        new
    }

    /// Returns the access rules of a session; `None` if everything is allowed.
    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeAccess {
    Denied,
    /// The client may read every topic that the filter matches: `can_receive` is true for each of them.
    Allowed,
    /// The client may read some of the matching topics: call `can_receive` for each message.
    AllowedInPart,
}

/// Access rules of one session. Topics and filters are without `$share/…/`, `$exclusive/` and `$delayed/…/`.
pub trait SessionAccess: Send + Sync {
    fn can_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool;
    fn can_subscribe(&self, filter: &str) -> SubscribeAccess;
    fn can_receive(&self, topic: &str) -> bool;

    /// Like `can_subscribe`, for a filter that the session has. An answer about a packet that waits does not count.
    fn keeps_subscription(&self, filter: &str) -> SubscribeAccess {
        self.can_subscribe(filter)
    }

    /// Like `can_publish`, for the will of the client, which was decided when the client connected.
    fn can_publish_will(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.can_publish(topic, qos, retain)
    }

    /// Returns whether another system decides about some actions, so that `question` must be called before a packet is
    /// handled.
    fn asks(&self) -> bool {
        false
    }

    /// Returns the question that must be answered before the requests of a packet can be decided.
    fn question(&self, _requests: &[AccessRequest<'_>]) -> Option<AccessQuestion> {
        None
    }

    /// The packet of the last question was handled.
    fn packet_handled(&self) {}

    /// Returns the number of filters whose decision is stored for the session.
    fn stored_filters(&self) -> usize {
        0
    }

    /// Deletes the decisions about filters that the session does not have. The session has the others.
    fn retain_filters(&self, _is_subscribed: &dyn Fn(&str) -> bool) {}

    /// The session has, or no longer has, subscriptions to a filter. A stored decision about a filter without a
    /// subscription must not allow deliveries through another filter.
    fn set_subscribed(&self, _filter: &str, _is_subscribed: bool) {}

    /// Returns the key of an inbox client. Its only right is to send messages to the inbox.
    fn inbox_key(&self) -> Option<InboxKey> {
        None
    }
}

/// Rights of a share group's member.
#[derive(Clone, Default)]
pub(crate) struct MemberRights(Option<Arc<dyn SessionAccess>>);

impl MemberRights {
    /// Returns the rights of a session for the topics of one filter.
    pub fn of(access: Option<&Arc<dyn SessionAccess>>, filter: &str) -> MemberRights {
        let is_restricted = |access: &&Arc<dyn SessionAccess>| access.can_subscribe(filter) != SubscribeAccess::Allowed;
        MemberRights(access.filter(is_restricted).cloned())
    }

    #[inline]
    pub fn can_receive(&self, topic: &str) -> bool {
        self.0.as_ref().is_none_or(|access| access.can_receive(topic))
    }
}

impl fmt::Debug for MemberRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_restricted = self.0.is_some();
        f.debug_struct("MemberRights")
            .field("is_restricted", &is_restricted)
            .finish()
    }
}

/// Allows everything. For tests, the simulator, and servers on a closed network.
#[derive(Debug, Default)]
pub struct OpenAccess;

impl AccessControl for OpenAccess {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::default()))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}
