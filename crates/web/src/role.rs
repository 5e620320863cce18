//! Roles as users and API keys have them: for the whole server, or within a namespace, as in EMQX
//! (`ns:<namespace>::<role>`).
//!
//! A namespace is a topic prefix: the mountpoint of clients without its last slash. A role within it applies to clients
//! whose mountpoint begins with the prefix, and to topics below it. A prefix consists of whole levels, so `a` does not
//! contain `ab`. Clients without a mountpoint belong to no namespace.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use auth::{NAMESPACE_ROLE, UserRole};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

const SEPARATOR: &str = "::";
const NAMESPACE_BYTES_MAX: usize = 256;

/// Permissions of a login. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything except secrets, API keys, console users, the audit log, backups and benchmarks.
    Viewer,
    /// Runs the node: disconnects clients, publishes, deletes retained messages, pauses and restarts actions. Cannot
    /// change the configuration, definitions, users or access rules.
    Operator,
    /// Changes everything.
    Admin,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    pub fn of_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns the role for the whole server.
    pub const fn of_server(self) -> AssignedRole {
        AssignedRole {
            role: self,
            namespace: None,
        }
    }
}

/// A topic prefix of whole levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace {
    /// With the last slash.
    prefix: Arc<str>,
}

impl Namespace {
    /// The topics of its clients begin with this text, which ends with `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn name(&self) -> &str {
        &self.prefix[..self.prefix.len() - 1]
    }

    /// Returns whether all topics of a filter are below the prefix. `a/#` also matches the topic `a`, which is not.
    pub fn contains(&self, topic: &str) -> bool {
        topic.strip_prefix(&*self.prefix).is_some_and(|rest| !rest.is_empty())
    }

    fn is_within(&self, other: &Namespace) -> bool {
        self.prefix.starts_with(&*other.prefix)
    }
}

impl FromStr for Namespace {
    type Err = RoleError;

    fn from_str(name: &str) -> Result<Namespace, RoleError> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_level = |level: &str| !level.is_empty() && level.chars().all(is_good);
        if name.len() > NAMESPACE_BYTES_MAX || !name.split('/').all(is_level) {
            return Err(RoleError::Namespace);
        }
        Ok(Namespace {
            prefix: format!("{name}/").into(),
        })
    }
}

impl TryFrom<String> for Namespace {
    type Error = RoleError;

    fn try_from(name: String) -> Result<Namespace, RoleError> {
        name.parse()
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> String {
        namespace.name().to_owned()
    }
}

/// A role, and the namespace to which it is limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AssignedRole {
    pub role: Role,
    /// `None`: the whole server.
    pub namespace: Option<Namespace>,
}

impl AssignedRole {
    pub fn is_admin_of_server(&self) -> bool {
        self.role == Role::Admin && self.namespace.is_none()
    }

    /// The role in the file of console users.
    pub fn in_file(&self) -> UserRole {
        match (self.role, &self.namespace) {
            (_, Some(_)) => UserRole::InNamespace(self.to_string().into()),
            (Role::Viewer, None) => UserRole::User,
            (Role::Operator, None) => UserRole::Operator,
            (Role::Admin, None) => UserRole::Superuser,
        }
    }

    /// Fails if the text of a role in a namespace is not valid.
    pub(crate) fn of_file(role: &UserRole) -> Result<AssignedRole, RoleError> {
        match role {
            UserRole::User => Ok(Role::Viewer.of_server()),
            UserRole::Operator => Ok(Role::Operator.of_server()),
            UserRole::Superuser => Ok(Role::Admin.of_server()),
            UserRole::InNamespace(text) => text.parse(),
        }
    }

    /// Returns the rights that both roles give. `None`: their namespaces have nothing in common.
    pub(crate) fn limited_by(self, limit: &AssignedRole) -> Option<AssignedRole> {
        let namespace = match (self.namespace, &limit.namespace) {
            (own, None) => own,
            (Some(own), Some(limit)) if own.is_within(limit) => Some(own),
            (Some(own), Some(limit)) if !limit.is_within(&own) => return None,
            (_, Some(limit)) => Some(limit.clone()),
        };
        Some(AssignedRole {
            role: self.role.min(limit.role),
            namespace,
        })
    }

    /// Returns the highest role. Roles for the whole server come first. `None`: there is none, or they belong to
    /// several namespaces.
    pub fn highest(roles: &[&AssignedRole]) -> Option<AssignedRole> {
        let of_server = roles.iter().filter(|one| one.namespace.is_none());
        if let Some(highest) = of_server.max_by_key(|one| one.role) {
            return Some((*highest).clone());
        }
        let highest = roles.iter().max_by_key(|one| one.role)?;
        let is_one_namespace = roles.iter().all(|one| one.namespace == highest.namespace);
        is_one_namespace.then(|| (*highest).clone())
    }
}

impl fmt::Display for AssignedRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => {
                let name = namespace.name();
                write!(f, "{NAMESPACE_ROLE}{name}{SEPARATOR}{}", self.role.name())
            }
            None => f.write_str(self.role.name()),
        }
    }
}

impl FromStr for AssignedRole {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<AssignedRole, RoleError> {
        let (namespace, role) = match text.strip_prefix(NAMESPACE_ROLE) {
            Some(rest) => {
                let (name, role) = rest.split_once(SEPARATOR).ok_or(RoleError::Role)?;
                (Some(name.parse()?), role)
            }
            None => (None, text),
        };
        Ok(AssignedRole {
            role: Role::of_name(role).ok_or(RoleError::Role)?,
            namespace,
        })
    }
}

impl TryFrom<String> for AssignedRole {
    type Error = RoleError;

    fn try_from(text: String) -> Result<AssignedRole, RoleError> {
        text.parse()
    }
}

impl From<AssignedRole> for String {
    fn from(role: AssignedRole) -> String {
        role.to_string()
    }
}

impl JsonSchema for AssignedRole {
    fn schema_name() -> Cow<'static, str> {
        "Role".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "`viewer`, `operator` or `admin`; each includes those before it. `ns:NAMESPACE::ROLE` is a role \
                within a namespace: for clients whose mountpoint begins with `NAMESPACE/`, and topics below it.",
            "pattern": "^(ns:[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*::)?(viewer|operator|admin)$",
        })
    }
}

/// Why a text is not a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleError {
    Role,
    Namespace,
}

impl fmt::Display for RoleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoleError::Role => {
                f.write_str("not a role: expected `viewer`, `operator` or `admin`, or one of them within a namespace")
            }
            RoleError::Namespace => write!(
                f,
                "a namespace must have 1 to {NAMESPACE_BYTES_MAX} letters, digits, hyphens, underscores and dots, in \
                 levels with a slash between them"
            ),
        }
    }
}

impl std::error::Error for RoleError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(text: &str) -> AssignedRole {
        text.parse().unwrap()
    }

    #[test]
    fn roles_are_ordered_and_named() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
            assert_eq!(Role::of_name(role.name()), Some(role));
        }
        assert_eq!(Role::of_name("superuser"), None);
    }

    #[test]
    fn roles_are_written_as_they_are_read() {
        for text in [
            "viewer",
            "admin",
            "ns:acme::viewer",
            "ns:tenants/acme-1.x_y::operator",
            "ns:viewer::admin",
        ] {
            assert_eq!(role(text).to_string(), text);
            assert_eq!(AssignedRole::of_file(&role(text).in_file()), Ok(role(text)));
            assert_eq!(serde_json::to_value(role(text)).unwrap(), text);
            assert_eq!(serde_json::from_value::<AssignedRole>(text.into()).unwrap(), role(text));
        }
        for role in Role::ALL {
            assert_eq!(AssignedRole::of_file(&role.of_server().in_file()), Ok(role.of_server()));
        }
        let namespace = role("ns:tenants/acme::viewer").namespace.unwrap();
        assert_eq!(
            (namespace.name(), namespace.prefix()),
            ("tenants/acme", "tenants/acme/")
        );
    }

    #[test]
    fn malformed_roles_are_rejected() {
        for (text, expected) in [
            ("", RoleError::Role),
            ("superuser", RoleError::Role),
            ("acme::viewer", RoleError::Role),
            ("NS:acme::viewer", RoleError::Role),
            ("ns:acme:viewer", RoleError::Role),
            ("ns:acme::", RoleError::Role),
            ("ns:acme::viewer::admin", RoleError::Role),
            ("ns:acme::ns:blue::admin", RoleError::Role),
            ("ns:::viewer", RoleError::Namespace),
            ("ns:::::viewer", RoleError::Namespace),
            ("ns:::viewer::viewer", RoleError::Namespace),
            ("ns:acme/::viewer", RoleError::Namespace),
            ("ns:/acme::viewer", RoleError::Namespace),
            ("ns:a//b::viewer", RoleError::Namespace),
            ("ns:+::viewer", RoleError::Namespace),
            ("ns:a/#::viewer", RoleError::Namespace),
            ("ns:$SYS::viewer", RoleError::Namespace),
            ("ns: ::viewer", RoleError::Namespace),
            ("ns:a\nb::viewer", RoleError::Namespace),
            ("ns:ü::viewer", RoleError::Namespace),
        ] {
            assert_eq!(text.parse::<AssignedRole>(), Err(expected), "{text:?}");
        }
        let longest = "x".repeat(NAMESPACE_BYTES_MAX);
        assert!(format!("ns:{longest}::viewer").parse::<AssignedRole>().is_ok());
        assert!(format!("ns:{longest}x::viewer").parse::<AssignedRole>().is_err());
    }

    #[test]
    fn namespace_contains_whole_levels() {
        let namespace: Namespace = "a".parse().unwrap();
        for (topic, expected) in [
            ("a/x", true),
            ("a/#", true),
            ("a//", true),
            ("a/", false),
            ("a", false),
            ("ab/x", false),
            ("/a/x", false),
            ("+/x", false),
            ("#", false),
            ("", false),
            ("$share/g/a/x", false),
            ("$delayed/5/a/x", false),
        ] {
            assert_eq!(namespace.contains(topic), expected, "{topic}");
        }
    }

    #[test]
    fn role_of_a_key_is_limited_by_its_issuer() {
        for (own, limit, expected) in [
            ("admin", "viewer", Some("viewer")),
            ("ns:a::admin", "admin", Some("ns:a::admin")),
            ("ns:a::admin", "viewer", Some("ns:a::viewer")),
            ("admin", "ns:a::operator", Some("ns:a::operator")),
            ("ns:a/b::viewer", "ns:a::admin", Some("ns:a/b::viewer")),
            ("ns:a::viewer", "ns:a/b::admin", Some("ns:a/b::viewer")),
            ("ns:a::admin", "ns:a::admin", Some("ns:a::admin")),
            ("ns:a::admin", "ns:ab::admin", None),
            ("ns:a::admin", "ns:b::admin", None),
        ] {
            let limited = role(own).limited_by(&role(limit));
            assert_eq!(limited, expected.map(role), "{own} {limit}");
        }
    }

    #[test]
    fn several_roles_give_one_or_none() {
        for (roles, expected) in [
            (vec![], None),
            (vec!["viewer", "operator"], Some("operator")),
            (vec!["ns:a::admin", "viewer"], Some("viewer")),
            (vec!["ns:a::viewer", "ns:a::admin"], Some("ns:a::admin")),
            (vec!["ns:a::viewer", "ns:b::admin"], None),
        ] {
            let parsed: Vec<AssignedRole> = roles.iter().map(|text| role(text)).collect();
            let all: Vec<&AssignedRole> = parsed.iter().collect();
            assert_eq!(AssignedRole::highest(&all), expected.map(role), "{roles:?}");
        }
    }
}
