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

/// Maximum number of groups of a client.
const GROUPS_MAX: usize = 1000;
/// Maximum length of the names of all groups of a client.
const GROUP_BYTES_MAX: usize = 64 * 1024;

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
    /// The provider has failed, and `on_failure` admits clients without a check: their names are not verified.
    pub is_unchecked: bool,
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

/// Names and values that a provider knows about a client, such as its tenant, and its groups. EMQX calls the names and
/// values `client_attrs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAttributes {
    values: Option<Arc<BTreeMap<Box<str>, Box<str>>>>,
    /// Sorted.
    groups: Option<Arc<[Box<str>]>>,
}

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

/// The groups exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyGroups;

impl fmt::Display for TooManyGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a client has at most {GROUPS_MAX} groups with {GROUP_BYTES_MAX} bytes in all"
        )
    }
}

impl std::error::Error for TooManyGroups {}

impl ClientAttributes {
    /// No attributes.
    pub const NONE: &ClientAttributes = &ClientAttributes {
        values: None,
        groups: None,
    };

    pub fn new(attributes: BTreeMap<Box<str>, Box<str>>) -> Result<ClientAttributes, TooManyAttributes> {
        let bytes: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
        if attributes.len() > ATTRIBUTES_MAX || bytes > ATTRIBUTE_BYTES_MAX {
            return Err(TooManyAttributes);
        }
        Ok(ClientAttributes {
            values: (!attributes.is_empty()).then(|| Arc::new(attributes)),
            groups: None,
        })
    }

    /// Sets the groups. Names are compared exactly.
    pub fn with_groups(self, groups: impl IntoIterator<Item = Box<str>>) -> Result<ClientAttributes, TooManyGroups> {
        let mut groups: Vec<Box<str>> = groups.into_iter().take(GROUPS_MAX + 1).collect();
        let bytes: usize = groups.iter().map(|group| group.len()).sum();
        if groups.len() > GROUPS_MAX || bytes > GROUP_BYTES_MAX {
            return Err(TooManyGroups);
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(ClientAttributes {
            groups: (!groups.is_empty()).then(|| groups.into()),
            ..self
        })
    }

    /// Adds values that the client does not have yet.
    pub fn with_defaults(&self, defaults: BTreeMap<Box<str>, Box<str>>) -> Result<ClientAttributes, TooManyAttributes> {
        let mut values = defaults;
        let own = self.values.iter().flat_map(|map| map.iter());
        values.extend(own.map(|(name, value)| (name.clone(), value.clone())));
        Ok(ClientAttributes {
            groups: self.groups.clone(),
            ..ClientAttributes::new(values)?
        })
    }

    /// Names of the groups of the client, sorted.
    pub fn groups(&self) -> &[Box<str>] {
        self.groups.as_deref().unwrap_or_default()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.as_ref()?.get(name).map(|value| &**value)
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values
            .iter()
            .flat_map(|map| map.iter().map(|(name, value)| (&**name, &**value)))
    }

    /// Returns whether the client has neither values nor groups.
    pub fn is_empty(&self) -> bool {
        self.values.is_none() && self.groups.is_none()
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
    fn defaults_replace_no_value() {
        let pair = |name: &str, value: &str| (Box::from(name), Box::from(value));
        let own = ClientAttributes::new([pair("tenant", "a")].into()).unwrap();
        let own = own.with_groups([Box::from("g")]).unwrap();
        let all = own
            .with_defaults([pair("tenant", "b"), pair("site", "c")].into())
            .unwrap();
        assert_eq!((all.get("tenant"), all.get("site")), (Some("a"), Some("c")));
        assert_eq!(all.groups(), own.groups());
        let many = attributes(ATTRIBUTES_MAX, 1).unwrap();
        assert_eq!(many.with_defaults([pair("one", "more")].into()), Err(TooManyAttributes));
    }

    #[test]
    fn groups_are_bounded() {
        let groups = |count: usize, bytes: usize| {
            let names = (0..count).map(move |number| format!("{number:0bytes$}").into());
            ClientAttributes::default().with_groups(names)
        };
        assert_eq!(
            groups(GROUPS_MAX, 5).map(|client| client.groups().len()),
            Ok(GROUPS_MAX)
        );
        assert_eq!(groups(GROUPS_MAX + 1, 5), Err(TooManyGroups));
        assert!(groups(2, GROUP_BYTES_MAX / 2).is_ok());
        assert_eq!(groups(3, GROUP_BYTES_MAX / 2), Err(TooManyGroups));
        assert!(groups(0, 0).is_ok_and(|none| none.is_empty() && none.groups().is_empty()));
        let names = ["b", "a", "b"].map(Box::from);
        let client = attributes(1, 1).unwrap().with_groups(names).unwrap();
        assert_eq!(client.groups(), ["a", "b"].map(Box::from));
        assert_eq!(client.get("a000"), Some("v"));
    }

    #[test]
    fn attributes_are_found_by_name() {
        let attributes = attributes(2, 1).unwrap();
        assert_eq!(attributes.get("a001"), Some("v"));
        assert_eq!(attributes.get("a002"), None);
        assert_eq!(attributes.iter().collect::<Vec<_>>(), [("a000", "v"), ("a001", "v")]);
    }
}
