//! The groups of a client: names in an attribute of its entry, or entries that a search finds.

use connectors::ldap::{LdapDn, LdapEntry, LdapFilter, LdapSearch, SearchScope};

use super::template::{self, ClientValues, ValueTemplate};
use super::{LdapGroupConfig, LdapGroupNames};

/// Maximum number of groups that a search returns. With more, the client is denied.
const GROUPS_MAX: u32 = 500;

pub(super) struct GroupRules {
    place: GroupPlace,
    /// Normalized names. The client must be a member of one.
    required: Vec<String>,
    names: LdapGroupNames,
}

enum GroupPlace {
    Attribute(String),
    Search {
        base: String,
        filter: LdapFilter<ValueTemplate>,
    },
}

/// The groups of a client.
pub(super) struct Groups {
    /// The first value of each name, or each whole name, sorted.
    pub names: Vec<String>,
    /// Number of names that are not valid.
    pub unreadable: usize,
    /// Whether the client is a member of a required group.
    pub is_sufficient: bool,
}

impl GroupRules {
    /// The error names the option.
    pub fn new(config: &LdapGroupConfig) -> Result<GroupRules, String> {
        let place = match (&config.filter, &config.base_dn) {
            (Some(filter), Some(base)) => GroupPlace::Search {
                base: valid_name("group_base_dn", base)?.render(&mut String::clone),
                filter: template::filter("group_filter", filter, &mut ValueTemplate::parse_of_group)?,
            },
            (Some(_), None) => return Err("group_base_dn: is missing: group_filter needs it".to_owned()),
            (None, Some(_)) => return Err("group_filter: is missing: group_base_dn needs it".to_owned()),
            (None, None) => GroupPlace::Attribute(template::attribute("group_attribute", &config.attribute)?),
        };
        if let GroupPlace::Search { filter, .. } = &place {
            let mut depends_on_client = false;
            filter.map(&mut |value| depends_on_client |= !value.is_fixed());
            if !depends_on_client {
                return Err("group_filter: needs ${dn} or another placeholder".to_owned());
            }
        }
        let required = config.required.iter();
        let required = required.map(|name| Ok(valid_name("required_groups", name)?.normalized()));
        Ok(GroupRules {
            place,
            required: required.collect::<Result<_, String>>()?,
            names: config.names,
        })
    }

    /// Returns the attribute of the entry that is needed.
    pub fn attribute(&self) -> Option<&str> {
        match &self.place {
            GroupPlace::Attribute(name) => Some(name),
            GroupPlace::Search { .. } => None,
        }
    }

    pub fn visit_values(&self, visit: &mut dyn FnMut(&ValueTemplate)) {
        if let GroupPlace::Search { filter, .. } = &self.place {
            filter.map(visit);
        }
    }

    /// Returns the search for the groups. `None`: the entry contains them.
    pub fn search(&self, values: ClientValues<'_>) -> Option<LdapSearch> {
        let GroupPlace::Search { base, filter } = &self.place else {
            return None;
        };
        Some(LdapSearch {
            base: base.clone(),
            scope: SearchScope::Subtree,
            filter: filter.map(&mut |value| values.text(value).into_bytes()),
            attributes: Vec::new(),
            limit: GROUPS_MAX,
        })
    }

    /// Returns the names of groups in the entry of the client.
    pub fn names_in(&self, entry: &LdapEntry) -> Vec<String> {
        let values = self.attribute().map_or(&[][..], |name| entry.values(name));
        // A name that is not text is counted as unreadable.
        values
            .iter()
            .map(|value| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    pub fn groups(&self, names: &[String]) -> Groups {
        let parsed: Vec<LdapDn<String>> = names.iter().filter_map(|name| LdapDn::of(name).ok()).collect();
        let is_required = |group: &LdapDn<String>| self.required.contains(&group.normalized());
        let name_of = |group: &LdapDn<String>| match self.names {
            LdapGroupNames::First => first_value(group),
            LdapGroupNames::Whole => Some(group.normalized()).filter(|name| !name.is_empty()),
        };
        let mut found: Vec<String> = parsed.iter().filter_map(name_of).collect();
        found.sort_unstable();
        found.dedup();
        Groups {
            unreadable: names.len() - parsed.len(),
            is_sufficient: self.required.is_empty() || parsed.iter().any(is_required),
            names: found,
        }
    }
}

/// Returns the first value of a name: that of the entry without its place.
pub(super) fn first_value(name: &LdapDn<String>) -> Option<String> {
    name.first().first().map(|(_, value)| value.clone())
}

/// The error names the option.
fn valid_name(option: &str, text: &str) -> Result<LdapDn<String>, String> {
    match LdapDn::of(text) {
        Ok(dn) if !dn.is_empty() => Ok(dn),
        Ok(_) => Err(format!(
            "{option}: is empty, expected a name such as cn=mqtt,ou=groups,dc=example,dc=org"
        )),
        Err(problem) => Err(format!("{option}: {problem}")),
    }
}
