//! The topic prefix of a listener's clients, as in EMQX, with placeholders for properties of the client.

use auth::{Missing, Placeholder, Template, TemplatePart};
use broker::Mountpoint;

use super::value::{OptionValue, Reject};

/// A prefix such as `tenants/${client_attrs.tenant}/`. It consists of whole levels, and a level has at most one
/// placeholder, so that no client can have the prefix of another one by its choice of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountpointTemplate {
    text: String,
    template: Template,
}

impl MountpointTemplate {
    pub fn parse(text: &str) -> Result<MountpointTemplate, String> {
        let template = Template::parse(text).map_err(|error| error.to_string())?;
        if let Some(other) = template.placeholders().find(|placeholder| !is_allowed(placeholder)) {
            return Err(format!(
                "{other} is not available: the placeholders are ${{clientid}}, ${{username}} and ${{client_attrs.NAME}}"
            ));
        }
        // A level has one mark per placeholder. The mark is not in the text, which has no control characters.
        let mark = "\u{1}";
        if text.contains(char::is_control) {
            return Err("the prefix contains control characters".to_owned());
        }
        let marked: String = template.parts().iter().map(|part| text_or(part, mark)).collect();
        if marked.split('/').any(|level| level.matches(mark).count() > 1) {
            return Err("two placeholders in one level: two clients could have the same prefix".to_owned());
        }
        Mountpoint::new(&marked.replace(mark, "x")).map_err(|error| error.to_string())?;
        let text = text.to_owned();
        Ok(MountpointTemplate { text, template })
    }

    /// Returns the prefix with the values of a client. `value` returns `None` for a value that is missing or unusable.
    pub fn render<'v>(&self, value: impl Fn(&Placeholder) -> Option<&'v str>) -> Result<String, Missing> {
        let mut prefix = String::new();
        for part in self.template.parts() {
            match part {
                TemplatePart::Text(text) => prefix.push_str(text),
                TemplatePart::Placeholder(placeholder) => {
                    prefix.push_str(value(placeholder).ok_or_else(|| Missing(placeholder.clone()))?);
                }
            }
        }
        Ok(prefix)
    }
}

fn is_allowed(placeholder: &Placeholder) -> bool {
    matches!(
        placeholder,
        Placeholder::ClientId | Placeholder::UserName | Placeholder::ClientAttribute(_)
    )
}

fn text_or<'a>(part: &'a TemplatePart, placeholder: &'a str) -> &'a str {
    match part {
        TemplatePart::Text(text) => text,
        TemplatePart::Placeholder(_) => placeholder,
    }
}

impl OptionValue for MountpointTemplate {
    fn type_name() -> String {
        "topic prefix".into()
    }

    fn expected() -> String {
        "a topic prefix that ends with /, such as \"site/\" or \"tenants/${client_attrs.tenant}/\"".into()
    }

    fn from_text(text: &str) -> Result<MountpointTemplate, Reject> {
        MountpointTemplate::parse(text).map_err(Reject::WithReason)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_checked_with_its_placeholders() {
        for valid in [
            "site/",
            "tenants/${client_attrs.tenant}/",
            "${username}/${clientid}/",
            "a/t-${username}/",
        ] {
            let template = MountpointTemplate::parse(valid).unwrap();
            assert_eq!(template.to_toml(), toml::Value::String(valid.to_owned()));
        }
        for (invalid, reason) in [
            ("site", "must end with `/`"),
            ("tenants/${username}", "must end with `/`"),
            ("$share/${username}/", "must not begin with `$`"),
            ("a/+/", "must not contain"),
            ("${username}${clientid}/", "two placeholders in one level"),
            ("a/${username}-${clientid}/", "two placeholders in one level"),
            ("${password}/", "${password} is not available"),
            ("${zone}/", "unknown placeholder ${zone}"),
            ("a\u{1}/", "control characters"),
        ] {
            let error = MountpointTemplate::parse(invalid).unwrap_err();
            assert!(error.contains(reason), "{invalid}: {error}");
        }
    }
}
