//! Authentication and authorization of MQTT clients.
//!
//! Authentication ([`ProviderChain`] of [`Provider`]s, [`Users`], [`PasswordHash`]) may take tens of milliseconds. It
//! runs on a thread pool of its own, never on a data-plane thread. Authorization ([`Acl`], [`SessionAcl`]) is compiled
//! once, resolved once per session, and then takes nanoseconds, without a lock, an allocation or a system call.
//!
//! MQTT packets, listeners, configuration files and HTTP are outside of this crate. Its only I/O is loading and saving
//! a password file and bans, and loading an ACL file.
//!
//! Invariants: access that no rule allows is denied; secrets never appear in a log or an error; every list is bounded;
//! all errors of a file or a rule list are reported together.

mod acl;
mod attribute_expression;
mod bans;
mod chain;
mod emqx_acl;
mod fixed_limits;
mod flapping;
mod login;
mod login_limiter;
mod password;
mod password_rules;
mod scram;
mod secret;
mod template;
mod totp;
mod users;
mod verified;

pub use acl::{
    AccessAction, AccessRule, Acl, AclError, AclErrorKind, AclErrors, AclFileError, AclFileErrorKind, AclFileErrors,
    AclOptions, CertificateIdentity, Cidr, CidrError, ClientRules, DecisiveClientRule, Identity,
    PartialSubscriptionPolicy, Permission, RulePart, SessionAcl, SubscriptionDecision, SubscriptionGrant,
    TopicRuleError, is_plain_level, load_mosquitto_acl, parse_mosquitto_acl, preset,
};
pub use attribute_expression::{AttributeExpression, AttributeExpressionError, AttributeFields};
pub use bans::{Ban, BanCandidate, BanError, BanFileError, BanKind, Bans, EXACT_BANS_MAX, PATTERN_BANS_MAX};
pub use chain::{
    AnonymousPolicy, AnonymousProvider, ChainLink, ChainStep, Credentials, DenyReason, Provider, ProviderChain,
    ProviderFuture, ProviderOutcome, RemoteProvider, RequestedAction, UnknownUsersProvider, UsersProvider,
};
pub use emqx_acl::emqx_acl;
pub use fixed_limits::FIXED_LIMITS;
pub use flapping::FlappingDetector;
pub use login::{ClientAttributes, Login, TooManyAttributes, TooManyGroups};
pub use login_limiter::{LockOut, LoginAttempt, LoginKind, LoginLimiter, LoginLimiterStats, LoginLimits};
pub use password::{
    CreateError, HashAlgorithm, HashError, HashSettings, MacFunction, PasswordHash, SCRAM_ITERATIONS, SaltPosition,
    ScramMethod, StoredPassword,
};
pub use password_rules::{PASSWORD_CHARACTERS_MIN, WeakPassword, check_new_password};
pub use scram::{ScramError, ScramExchange, ScramServer, ScramSuccess};
pub use secret::Password;
pub use template::{Missing, Placeholder, Template, TemplateError, TemplatePart, TemplateUse};
pub use totp::{TOTP_DIGITS, TotpSecret};
pub use users::{
    LineError, LoadError, NAMESPACE_ROLE, PasswordFileErrors, UserError, UserRole, UserSnapshot, UserSummary, Users,
    is_clear_name,
};
pub use verified::{PasswordCheck, VerifiedPasswords};
