//! Filters and names with placeholders.

use std::borrow::Cow;

use auth::{ClientAttributes, Credentials, Placeholder, Template};
use connectors::ldap::{LdapDn, LdapFilter};

/// Maximum length of a value. No directory has longer names.
const VALUE_BYTES_MAX: usize = 4096;

/// Name of the entry, in filters of groups.
const ENTRY_NAME: &str = "${dn}";

/// A value of a filter or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueTemplate(Vec<ValuePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    Client(Template),
    /// The name of the entry of the client.
    EntryName,
}

/// The values for a client.
#[derive(Clone, Copy)]
pub(super) struct ClientValues<'a> {
    credentials: &'a Credentials,
    dn: &'a str,
}

impl ValueTemplate {
    pub fn parse(text: String) -> Result<ValueTemplate, String> {
        client_template(&text).map(|template| ValueTemplate(vec![ValuePart::Client(template)]))
    }

    /// Parses a value that may also contain `${dn}`.
    pub fn parse_of_group(text: String) -> Result<ValueTemplate, String> {
        let mut parts = Vec::new();
        for (index, part) in text.split(ENTRY_NAME).enumerate() {
            if index > 0 {
                parts.push(ValuePart::EntryName);
            }
            parts.push(ValuePart::Client(client_template(part)?));
        }
        Ok(ValueTemplate(parts))
    }

    pub fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        let templates = self.0.iter().filter_map(|part| match part {
            ValuePart::Client(template) => Some(template),
            ValuePart::EntryName => None,
        });
        templates.flat_map(Template::placeholders)
    }

    /// Returns whether the value is the same for all clients.
    pub fn is_fixed(&self) -> bool {
        self.placeholders().next().is_none() && !self.0.contains(&ValuePart::EntryName)
    }

    pub fn has(&self, placeholder: &Placeholder) -> bool {
        self.placeholders().any(|found| found == placeholder)
    }

    /// Returns whether the value is the user name and nothing else.
    pub fn is_user_name(&self) -> bool {
        let user_name = Template::parse("${username}");
        matches!(self.0.as_slice(), [ValuePart::Client(template)] if Ok(template) == user_name.as_ref())
    }
}

impl<'a> ClientValues<'a> {
    /// The client must have a usable value for each placeholder.
    pub fn of(credentials: &'a Credentials) -> ClientValues<'a> {
        ClientValues { credentials, dn: "" }
    }

    pub fn with_dn(self, dn: &'a str) -> ClientValues<'a> {
        ClientValues { dn, ..self }
    }

    pub fn value(&self, placeholder: &Placeholder) -> String {
        let value = placeholder.value(self.credentials, ClientAttributes::NONE);
        String::from_utf8_lossy(&value.unwrap_or_default()).into_owned()
    }

    /// Returns the value without escapes.
    pub fn text(&self, template: &ValueTemplate) -> String {
        let part = |part: &ValuePart| match part {
            // `is_usable` has checked that no value is missing.
            ValuePart::Client(template) => Cow::Owned(template.render(self.credentials).unwrap_or_default()),
            ValuePart::EntryName => Cow::Borrowed(self.dn),
        };
        template.0.iter().map(part).collect()
    }
}

/// Returns whether a directory can have the client's value.
pub(super) fn is_usable(placeholder: &Placeholder, credentials: &Credentials) -> bool {
    let value = placeholder.value(credentials, ClientAttributes::NONE);
    value.is_some_and(|value| !value.is_empty() && value.len() <= VALUE_BYTES_MAX && !value.contains(&0))
}

/// The error names the option.
pub(super) fn filter(
    option: &str,
    text: &str,
    value: &mut dyn FnMut(String) -> Result<ValueTemplate, String>,
) -> Result<LdapFilter<ValueTemplate>, String> {
    LdapFilter::parse(text, value).map_err(|problem| format!("{option}: {problem}"))
}

/// The error names the option.
pub(super) fn dn(option: &str, text: &str) -> Result<LdapDn<ValueTemplate>, String> {
    LdapDn::parse(text, &mut ValueTemplate::parse).map_err(|problem| format!("{option}: {problem}"))
}

/// The error names the option.
pub(super) fn attribute(option: &str, name: &str) -> Result<String, String> {
    let is_valid = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | ';' | '_');
    match !name.is_empty() && name.chars().all(is_valid) {
        true => Ok(name.to_owned()),
        false => Err(format!("{option}: {name:?} is not the name of an attribute")),
    }
}

fn client_template(text: &str) -> Result<Template, String> {
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    for placeholder in template.placeholders() {
        match placeholder {
            Placeholder::Password => {
                return Err("${password} is not allowed here: directories log filters and names".to_owned());
            }
            Placeholder::ClientAttribute(_) => {
                return Err(format!("{placeholder} has no value before the login"));
            }
            _ => {}
        }
    }
    Ok(template)
}
