//! Makes a login of an entry: user name, superuser, and attributes of the client.

use std::collections::BTreeMap;

use auth::{ClientAttributes, Login, Placeholder};
use connectors::ldap::{LdapDn, LdapEntry, LdapFilter, folded};

use super::groups::first_value;
use super::template::{self, ClientValues, ValueTemplate};
use super::{LdapConfig, LdapGroupNames, NAME};
use crate::superuser::is_true;

/// Maximum length of a user name [MQTT-1.5.4].
const USER_NAME_BYTES_MAX: usize = 65_535;

pub(super) struct LoginRules {
    /// Attributes that are compared with the user name, with the compared values.
    user_names: Vec<ComparedAttribute>,
    /// Attributes that are compared with the client ID.
    client_ids: Vec<ComparedAttribute>,
    superuser: Option<String>,
    /// Names of client attributes, and the attributes of the entry.
    client_attributes: BTreeMap<String, String>,
    groups: Option<String>,
    group_names: LdapGroupNames,
}

/// An attribute, and the value that the directory compares with it.
type ComparedAttribute = (String, ValueTemplate);

/// Why an entry cannot become a login.
pub(super) struct UnusableEntry {
    pub summary: &'static str,
    pub detail: String,
}

impl LoginRules {
    /// `name` is the base of the search, or the name of the entry. The error names the option.
    pub fn new(
        config: &LdapConfig,
        filter: &LdapFilter<ValueTemplate>,
        name: &LdapDn<ValueTemplate>,
    ) -> Result<LoginRules, String> {
        let of_filter = filter.equalities().into_iter();
        let of_name = name
            .first()
            .iter()
            .map(|(attribute, value)| (attribute.as_str(), value));
        let compared: Vec<(&str, &ValueTemplate)> = of_filter.chain(of_name).collect();
        let compared_with = |placeholder: &Placeholder| -> Vec<ComparedAttribute> {
            let found = compared.iter().filter(|(_, value)| value.has(placeholder));
            found
                .map(|(attribute, value)| ((*attribute).to_owned(), ValueTemplate::clone(value)))
                .collect()
        };
        let superuser = config.is_superuser_attribute.as_deref();
        for (client_attribute, attribute) in &config.client_attributes {
            template::attribute(&format!("client_attrs.{client_attribute}"), attribute)?;
        }
        let groups = config.groups.client_attribute.clone();
        if let Some(name) = groups
            .as_ref()
            .filter(|name| config.client_attributes.contains_key(*name))
        {
            return Err(format!(
                "groups_attr: {name} is also in client_attrs; choose another name"
            ));
        }
        Ok(LoginRules {
            user_names: compared_with(&Placeholder::UserName),
            client_ids: compared_with(&Placeholder::ClientId),
            superuser: superuser
                .map(|name| template::attribute("is_superuser_attribute", name))
                .transpose()?,
            client_attributes: config.client_attributes.clone(),
            groups,
            group_names: config.groups.names,
        })
    }

    /// Returns whether the entry shows how the directory writes the user name.
    pub fn compares_user_names(&self) -> bool {
        !self.user_names.is_empty()
    }

    /// Returns the attributes of an entry that are needed.
    pub fn attributes(&self) -> Vec<&str> {
        let compared = self.user_names.iter().chain(&self.client_ids);
        let compared = compared.map(|(attribute, _)| attribute.as_str());
        let mapped = self.client_attributes.values().map(String::as_str);
        compared.chain(self.superuser.as_deref()).chain(mapped).collect()
    }

    pub fn login(
        &self,
        entry: &LdapEntry,
        values: ClientValues<'_>,
        groups: &[String],
    ) -> Result<Login, UnusableEntry> {
        self.check_client_id(entry, values)?;
        let is_superuser = self.superuser.as_ref().is_some_and(|name| {
            let mut values = texts(entry, name);
            values.any(|value| is_true(value.to_ascii_lowercase().as_bytes()))
        });
        Ok(Login {
            provider: Some(NAME),
            user_name: self.user_name(entry, values)?,
            attributes: self.client_attributes(entry, groups)?,
            ..Login::new(is_superuser)
        })
    }

    /// Returns the user name of the session if it differs from that of the client.
    fn user_name(&self, entry: &LdapEntry, values: ClientValues<'_>) -> Result<Option<Box<str>>, UnusableEntry> {
        if self.user_names.is_empty() || is_value_of(entry, values, &self.user_names) {
            return Ok(None);
        }
        let plain = self.user_names.iter().filter(|(_, value)| value.is_user_name());
        for (attribute, value) in plain {
            let wanted = folded(&values.text(value));
            if let Some(found) = texts(entry, attribute).find(|found| is_user_name(found) && folded(found) == wanted) {
                return Ok(Some(found.into()));
            }
        }
        Err(UnusableEntry {
            summary: "the user name of a client is not a value of its entry, or cannot be read there: it is rejected",
            detail: names_of(&self.user_names),
        })
    }

    /// Rejects a client ID that the entry has only in another case, because each spelling is another session.
    fn check_client_id(&self, entry: &LdapEntry, values: ClientValues<'_>) -> Result<(), UnusableEntry> {
        if self.client_ids.is_empty() || is_value_of(entry, values, &self.client_ids) {
            return Ok(());
        }
        Err(UnusableEntry {
            summary: "the client ID of a client is not a value of its entry, or cannot be read there: it is rejected",
            detail: names_of(&self.client_ids),
        })
    }

    fn client_attributes(&self, entry: &LdapEntry, groups: &[String]) -> Result<ClientAttributes, UnusableEntry> {
        let mut attributes: BTreeMap<Box<str>, Box<str>> = BTreeMap::new();
        for (name, attribute) in &self.client_attributes {
            // Directories return values in any order.
            let mut values: Vec<&str> = texts(entry, attribute).collect();
            values.sort_unstable();
            if !values.is_empty() {
                attributes.insert(name.as_str().into(), values.join(",").into());
            }
        }
        if let Some(name) = &self.groups {
            // A whole name contains commas.
            let separator = match self.group_names {
                LdapGroupNames::First => ",",
                LdapGroupNames::Whole => ";",
            };
            if !groups.is_empty() {
                attributes.insert(name.as_str().into(), groups.join(separator).into());
            }
            for group in groups {
                let whole = LdapDn::of(group)
                    .ok()
                    .filter(|_| self.group_names == LdapGroupNames::Whole);
                let value = whole.as_ref().and_then(first_value);
                let value = value.as_deref().unwrap_or(group);
                attributes.insert(format!("{name}.{group}").into(), value.into());
            }
        }
        let too_many = |detail: String| UnusableEntry {
            summary: "a client has too many attributes or groups: it is rejected; a group_filter can select fewer",
            detail,
        };
        let attributes = ClientAttributes::new(attributes).map_err(|error| too_many(error.to_string()))?;
        let groups = attributes.with_groups(groups.iter().map(|group| group.as_str().into()));
        groups.map_err(|error| too_many(error.to_string()))
    }
}

/// Returns whether one of the attributes has exactly the value that it is compared with.
fn is_value_of(entry: &LdapEntry, values: ClientValues<'_>, compared: &[ComparedAttribute]) -> bool {
    compared.iter().any(|(attribute, value)| {
        let wanted = values.text(value);
        texts(entry, attribute).any(|found| found == wanted)
    })
}

fn names_of(compared: &[ComparedAttribute]) -> String {
    let names: Vec<&str> = compared.iter().map(|(attribute, _)| attribute.as_str()).collect();
    format!("attributes: {}", names.join(", "))
}

/// The values of an attribute that are text.
fn texts<'a>(entry: &'a LdapEntry, attribute: &str) -> impl Iterator<Item = &'a str> {
    entry
        .values(attribute)
        .iter()
        .filter_map(|value| str::from_utf8(value).ok())
}

fn is_user_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= USER_NAME_BYTES_MAX && !text.contains('\0')
}
