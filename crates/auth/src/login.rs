//! The result of a successful login.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::acl::ClientRules;

/// Maximum number of attributes of a client.
const ATTRIBUTES_MAX: usize = 64;
/// Maximum length of all names and values of the attributes of a client.
const ATTRIBUTE_BYTES_MAX: usize = 8 * 1024;

/// An admitted client.
#[derive(Clone, Debug, Default)]
pub struct Login {
    pub is_superuser: bool,
    /// Name of the remote provider that knows the client. `None` for a user of the server or an anonymous client, whose
    /// rights follow from the user name alone.
    pub provider: Option<&'static str>,
    /// User name of the session, if it differs from that of CONNECT: a CONNECT can contain a token instead of a name.
    pub user_name: Option<Box<str>>,
    pub attributes: ClientAttributes,
    /// Access rules of this client. They are checked before those of the server.
    pub rules: Option<Arc<ClientRules>>,
    /// The server disconnects the client at this time.
    pub expires_at: Option<SystemTime>,
}

impl Login {
    /// A login without rules and attributes.
    pub fn new(is_superuser: bool) -> Login {
        Login {
            is_superuser,
            ..Login::default()
        }
    }
}

/// Names and values that a provider knows about a client, such as its tenant. EMQX calls them `client_attrs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAttributes(Option<Arc<BTreeMap<Box<str>, Box<str>>>>);

/// The attributes exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyAttributes;

impl fmt::Display for TooManyAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a client has at most {ATTRIBUTES_MAX} attributes with {ATTRIBUTE_BYTES_MAX} bytes in all"
        )
    }
}

impl std::error::Error for TooManyAttributes {}

impl ClientAttributes {
    /// No attributes.
    pub const NONE: &ClientAttributes = &ClientAttributes(None);

    pub fn new(attributes: BTreeMap<Box<str>, Box<str>>) -> Result<ClientAttributes, TooManyAttributes> {
        let bytes: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
        if attributes.len() > ATTRIBUTES_MAX || bytes > ATTRIBUTE_BYTES_MAX {
            return Err(TooManyAttributes);
        }
        Ok(ClientAttributes((!attributes.is_empty()).then(|| Arc::new(attributes))))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(|value| &**value)
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .flat_map(|map| map.iter().map(|(name, value)| (&**name, &**value)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(count: usize, value_bytes: usize) -> Result<ClientAttributes, TooManyAttributes> {
        let value: Box<str> = "v".repeat(value_bytes).into();
        ClientAttributes::new((0..count).map(|i| (format!("a{i:03}").into(), value.clone())).collect())
    }

    #[test]
    fn attributes_are_bounded() {
        assert!(attributes(ATTRIBUTES_MAX, 1).is_ok());
        assert_eq!(attributes(ATTRIBUTES_MAX + 1, 1), Err(TooManyAttributes));
        assert!(attributes(1, ATTRIBUTE_BYTES_MAX - 4).is_ok());
        assert_eq!(attributes(1, ATTRIBUTE_BYTES_MAX - 3), Err(TooManyAttributes));
        assert!(attributes(0, 0).is_ok_and(|none| none.is_empty()));
    }

    #[test]
    fn attributes_are_found_by_name() {
        let attributes = attributes(2, 1).unwrap();
        assert_eq!(attributes.get("a001"), Some("v"));
        assert_eq!(attributes.get("a002"), None);
        assert_eq!(attributes.iter().collect::<Vec<_>>(), [("a000", "v"), ("a001", "v")]);
    }
}
