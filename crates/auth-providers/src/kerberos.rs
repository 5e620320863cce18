//! Logins with Kerberos: the server's side of the SASL mechanism GSSAPI [RFC 4752], which EMQX uses as well.
//!
//! ```text
//! client   token of GSSAPI                     in CONNECT, or in AUTH 0x19
//! server   token of GSSAPI                     in AUTH 0x18; left out if GSSAPI has none (no mutual authentication)
//! client   empty                               in AUTH 0x18
//! server   wrapped: 01 00 00 00                in AUTH 0x18: there is no security layer
//! client   wrapped: 01 00 00 00, then a name   in AUTH 0x18: the authorization identity, or nothing
//! server                                       CONNACK, or AUTH 0x00
//! ```
//!
//! Every step may block: GSSAPI reads the keytab and writes the replay cache. So no step runs on a data-plane thread.
//!
//! Invariants: each message is bounded, and so is the number of tokens; an exchange is used for one message only,
//! because the caller gives it away; each rejection has a reason that is counted.

mod gssapi;
mod reason;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use auth::is_clear_name;

pub use gssapi::GssError;
use gssapi::{Context, ContextClient, Credential};
pub use reason::KerberosReason;

/// The Authentication Method of EMQX.
pub const METHOD: &str = "GSSAPI-KERBEROS";

/// The largest token that Windows creates by default.
const TOKEN_BYTES_MAX: usize = 48_000;
/// Kerberos needs one token of the client, or two with the flags of DCE.
const TOKENS_MAX: u32 = 3;
/// The security layer of [RFC 4752, section 3.3] that messages of MQTT have.
const NO_SECURITY_LAYER: u8 = 1;
/// First part of principals such as `WELLKNOWN/ANONYMOUS`, which do not name a client.
const WELL_KNOWN: &str = "WELLKNOWN/";

/// Options of the provider.
#[derive(Clone, Debug)]
pub struct KerberosConfig {
    /// Principal of the server, for example `mqtt/broker.example.com@EXAMPLE.COM`.
    pub principal: String,
    /// `None`: the keytab of the Kerberos library.
    pub keytab_file: Option<PathBuf>,
    /// Leave out the realm of the server in user names.
    pub strip_realm: bool,
    /// End the session when the ticket expires.
    pub disconnect_after_expire: bool,
}

/// Accepts clients for the principal of the server.
pub struct KerberosAcceptor {
    credential: Credential,
    realm: Box<str>,
    strip_realm: bool,
    disconnect_after_expire: bool,
    allowed: AtomicU64,
    /// In the order of [`KerberosReason::ALL`].
    denied: [AtomicU64; KerberosReason::ALL.len()],
    step_ns: AtomicU64,
}

/// An exchange whose next message is expected.
pub struct KerberosExchange {
    context: Context,
    /// User name of CONNECT or of the session, which the principal must have.
    offered_name: Option<Box<str>>,
    expected: Expected,
}

/// Meaning of the next message of the client.
enum Expected {
    /// A token, after this number of tokens.
    Token(u32),
    /// The empty message with which the client asks for the security layers.
    Nothing(Principal),
    /// The security layer that the client chooses.
    Choice(Principal),
}

/// An authenticated client.
struct Principal {
    /// With the realm.
    name: Box<str>,
    user_name: Box<str>,
    expires_at: Option<SystemTime>,
}

/// Result of a message.
pub enum KerberosStep {
    /// Send this to the client, and wait for its next message.
    Continue {
        data: Box<[u8]>,
        exchange: KerberosExchange,
    },
    Done(KerberosLogin),
}

/// An admitted client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KerberosLogin {
    pub user_name: Box<str>,
    /// The server disconnects the client at this time.
    pub expires_at: Option<SystemTime>,
}

/// Why a client is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KerberosRejection {
    pub reason: KerberosReason,
    /// The words of the library, for the log.
    pub error: Option<GssError>,
}

/// Results since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KerberosStats {
    pub allowed: u64,
    pub denied: [(KerberosReason, u64); KerberosReason::ALL.len()],
    /// Sum of the times of all steps.
    pub step_time: Duration,
}

impl From<KerberosReason> for KerberosRejection {
    fn from(reason: KerberosReason) -> KerberosRejection {
        KerberosRejection { reason, error: None }
    }
}

impl From<GssError> for KerberosRejection {
    fn from(error: GssError) -> KerberosRejection {
        KerberosRejection {
            reason: KerberosReason::of_error(&error),
            error: Some(error),
        }
    }
}

/// Returns the realm of a principal such as `mqtt/broker.example.com@EXAMPLE.COM`.
pub fn realm_of(principal: &str) -> Result<&str, String> {
    let expected = || format!("found \"{principal}\", expected a principal such as mqtt/host.example.com@EXAMPLE.COM");
    let (name, realm) = principal.split_once('@').ok_or_else(expected)?;
    let is_part = |part: &str| !part.is_empty() && !part.contains(['@', '\\', '\0']);
    match is_part(name) && is_part(realm) && name.split('/').all(|component| !component.is_empty()) {
        true => Ok(realm),
        false => Err(expected()),
    }
}

impl KerberosAcceptor {
    /// Fails if the keytab has no key of the principal. The error begins with the option.
    pub fn new(config: &KerberosConfig) -> Result<KerberosAcceptor, String> {
        let realm = realm_of(&config.principal).map_err(|error| format!("principal: {error}"))?;
        let keytab = config.keytab_file.as_ref().map(|path| {
            let name = [b"FILE:".as_slice(), path.as_os_str().as_bytes()].concat();
            CString::new(name).map_err(|_| format!("keytab_file: {} contains a NUL byte", path.display()))
        });
        let keytab = keytab.transpose()?;
        let credential = Credential::acquire(&config.principal, keytab.as_deref()).map_err(|error| {
            let principal = &config.principal;
            match &config.keytab_file {
                Some(path) => format!(
                    "keytab_file: {} has no usable key of {principal}: {error}",
                    path.display()
                ),
                None => format!("keytab_file: the default keytab has no usable key of {principal}: {error}"),
            }
        })?;
        Ok(KerberosAcceptor {
            credential,
            realm: realm.into(),
            strip_realm: config.strip_realm,
            disconnect_after_expire: config.disconnect_after_expire,
            allowed: AtomicU64::new(0),
            denied: std::array::from_fn(|_| AtomicU64::new(0)),
            step_ns: AtomicU64::new(0),
        })
    }

    /// Reads the first message of a client. `offered_name`: the user name of CONNECT, or of the session. May block.
    pub fn begin(&self, offered_name: Option<&str>, message: &[u8]) -> Result<KerberosStep, KerberosRejection> {
        let exchange = KerberosExchange {
            context: Context::new(),
            offered_name: offered_name.map(Into::into),
            expected: Expected::Token(0),
        };
        self.proceed(exchange, message)
    }

    /// Reads the next message of a client. May block.
    pub fn proceed(&self, exchange: KerberosExchange, message: &[u8]) -> Result<KerberosStep, KerberosRejection> {
        let started = Instant::now();
        let result = self.step(exchange, message);
        let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.step_ns.fetch_add(elapsed_ns, Ordering::Relaxed);
        match &result {
            Ok(KerberosStep::Continue { .. }) => {}
            Ok(KerberosStep::Done(_)) => {
                self.allowed.fetch_add(1, Ordering::Relaxed);
            }
            Err(rejection) => {
                let reasons = KerberosReason::ALL.iter().zip(&self.denied);
                for (_, count) in reasons.filter(|(reason, _)| **reason == rejection.reason) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        result
    }

    pub fn stats(&self) -> KerberosStats {
        KerberosStats {
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: std::array::from_fn(|at| (KerberosReason::ALL[at], self.denied[at].load(Ordering::Relaxed))),
            step_time: Duration::from_nanos(self.step_ns.load(Ordering::Relaxed)),
        }
    }

    fn step(&self, exchange: KerberosExchange, message: &[u8]) -> Result<KerberosStep, KerberosRejection> {
        if message.len() > TOKEN_BYTES_MAX {
            return Err(KerberosReason::TooLong.into());
        }
        let KerberosExchange {
            context,
            offered_name,
            expected,
        } = exchange;
        match expected {
            Expected::Token(count) => self.read_token(context, offered_name, count, message),
            Expected::Nothing(principal) => match message.is_empty() {
                true => offer(context, offered_name, principal),
                false => Err(KerberosReason::OutOfOrder.into()),
            },
            Expected::Choice(principal) => self.read_choice(context, principal, message),
        }
    }

    fn read_token(
        &self,
        mut context: Context,
        offered_name: Option<Box<str>>,
        count: u32,
        token: &[u8],
    ) -> Result<KerberosStep, KerberosRejection> {
        if token.is_empty() {
            return Err(KerberosReason::NoToken.into());
        }
        if count >= TOKENS_MAX {
            return Err(KerberosReason::OutOfOrder.into());
        }
        let accepted = context.accept(&self.credential, token)?;
        let expected = match accepted.client {
            None => Expected::Token(count + 1),
            Some(client) => {
                let principal = self.principal(client)?;
                if offered_name.as_ref().is_some_and(|name| *name != principal.user_name) {
                    return Err(KerberosReason::OtherUserName.into());
                }
                // Without a token, there is nothing that the client could answer with an empty message.
                if accepted.token.is_empty() {
                    return offer(context, offered_name, principal);
                }
                Expected::Nothing(principal)
            }
        };
        Ok(KerberosStep::Continue {
            data: accepted.token.into(),
            exchange: KerberosExchange {
                context,
                offered_name,
                expected,
            },
        })
    }

    /// Reads the last message: the security layer, the largest message, and the authorization identity.
    fn read_choice(
        &self,
        mut context: Context,
        principal: Principal,
        wrapped: &[u8],
    ) -> Result<KerberosStep, KerberosRejection> {
        let message = context.unwrap_message(wrapped)?;
        let Some(([layer, ..], identity)) = message.split_first_chunk::<4>() else {
            return Err(KerberosReason::Malformed.into());
        };
        if *layer != NO_SECURITY_LAYER {
            return Err(KerberosReason::SecurityLayer.into());
        }
        // Clients send the whole principal, or its first part, as Cyrus SASL does.
        let is_own = |identity: &[u8]| {
            let short = self.short_name(&principal.name).map(str::as_bytes);
            identity.is_empty() || identity == principal.name.as_bytes() || Some(identity) == short
        };
        if !is_own(identity) {
            return Err(KerberosReason::AuthorizationIdentity.into());
        }
        Ok(KerberosStep::Done(KerberosLogin {
            user_name: principal.user_name,
            expires_at: principal.expires_at,
        }))
    }

    fn principal(&self, client: ContextClient) -> Result<Principal, KerberosReason> {
        let name = client.principal;
        if client.is_anonymous || name.starts_with(WELL_KNOWN) {
            return Err(KerberosReason::Anonymous);
        }
        // The library escapes characters with a backslash. Without them, the only `@` is in front of the realm.
        let has_realm = name.split_once('@').is_some_and(|(_, realm)| !realm.is_empty());
        if name.contains(['\\', char::REPLACEMENT_CHARACTER]) || !has_realm || !is_clear_name(&name) {
            return Err(KerberosReason::UserName);
        }
        let user_name: &str = match self.strip_realm {
            true => self.short_name(&name).unwrap_or(&name),
            false => &name,
        };
        if user_name.is_empty() {
            return Err(KerberosReason::UserName);
        }
        let lifetime = client.lifetime_s.filter(|_| self.disconnect_after_expire);
        Ok(Principal {
            user_name: user_name.into(),
            expires_at: lifetime.and_then(|s| SystemTime::now().checked_add(Duration::from_secs(s.into()))),
            name: name.into(),
        })
    }

    /// Returns the part before the realm of the server. `None`: the principal is of another realm, in which another
    /// client may have the same name.
    fn short_name<'a>(&self, principal: &'a str) -> Option<&'a str> {
        let (name, realm) = principal.split_once('@')?;
        (*realm == *self.realm).then_some(name)
    }
}

/// Sends the security layers of the server.
fn offer(
    mut context: Context,
    offered_name: Option<Box<str>>,
    principal: Principal,
) -> Result<KerberosStep, KerberosRejection> {
    let data = context.wrap(&[NO_SECURITY_LAYER, 0, 0, 0])?;
    Ok(KerberosStep::Continue {
        data: data.into(),
        exchange: KerberosExchange {
            context,
            offered_name,
            expected: Expected::Choice(principal),
        },
    })
}

#[cfg(test)]
mod tests;
