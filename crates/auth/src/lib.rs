//! Who may connect, and what they may do.
//!
//! Authentication ([`Chain`] of [`Provider`]s, [`Users`], [`PasswordHash`]) may take tens of milliseconds and belongs on a
//! pool of its own, never on a data-plane thread. Authorization ([`Acl`], [`SessionAcl`]) is compiled once, resolved once
//! per session, and then answers in nanoseconds without a lock, an allocation or a system call.
//!
//! Not here: MQTT packets, listeners, configuration files, HTTP. The only I/O is loading and saving a password file
//! and bans, and loading an ACL file.
//!
//! Invariants: what no rule allows is refused; secrets never reach a log or an error text; every list has a bound, and
//! everything that is wrong with a file or a rule list is reported at once.

mod acl;
mod bans;
mod chain;
mod password;
mod secret;
mod users;
mod verified;

pub use acl::{
    Acl, AclError, AclErrorKind, AclErrors, AclFileError, AclFileErrorKind, AclFileErrors, AclOptions, Action, Cidr,
    CidrError, Grant, Identity, PartialSubscription, Permission, Rule, SessionAcl, TopicRuleError, load_mosquitto_acl,
    parse_mosquitto_acl, preset,
};
pub use bans::{Ban, BanError, BanFileError, BanKind, Bans, Suspect};
pub use chain::{AnonymousPolicy, AnonymousProvider, Chain, Credentials, DenyReason, Outcome, Provider, UsersProvider};
pub use password::{CreateError, HashError, PasswordHash};
pub use secret::Password;
pub use users::{LineError, LoadError, PasswordFileErrors, UserError, UserSnapshot, UserSummary, Users};
pub use verified::VerifiedPasswords;
