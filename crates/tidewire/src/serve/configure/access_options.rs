//! Options of providers and sources of access rules that an administrator checks before adding them to the file.

use api::{ConfigChangeError, ConfigChanges};

use crate::config::key::OptionKey;
use crate::config::options::access::ProviderKind;
use crate::config::schema::{SchemaLookup, lookup};
use crate::config::value::OptionValue;

/// Options of `access` besides the tables of providers.
const OTHERS: [&str; 3] = ["providers", "sources", "source"];

/// Parses the text. Returns its tables, and the keys that it sets.
pub fn parse(text: &str) -> Result<(toml::Table, ConfigChanges), ConfigChangeError> {
    let unnamed = |reason: String| ConfigChangeError::Rejected(vec![(String::new(), reason)]);
    let document: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let offset = error.span().map_or(0, |span| span.start);
        let before = text.get(..offset).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        unnamed(format!("line {line}: {}", error.message().replace('\n', ", ")))
    })?;
    let mut keys = Vec::new();
    flatten(&OptionKey::default(), &document, &mut keys);
    let is_accepted = |key: &OptionKey| match key.words()[..] {
        ["access", word, ..] => {
            OTHERS.contains(&word) || ProviderKind::from_text(word).is_ok_and(ProviderKind::is_remote)
        }
        _ => false,
    };
    let other = |key: &&OptionKey| !is_accepted(key);
    if let Some(key) = keys.iter().find(other) {
        let reason = "is not an option of a provider or source: expected `access.providers`, `access.sources` or a \
                      table such as `access.http`";
        return Err(ConfigChangeError::Rejected(vec![(key.to_string(), reason.to_owned())]));
    }
    if keys.is_empty() {
        return Err(unnamed("contains no option".to_owned()));
    }
    let changes = keys.iter().map(|key| (key.to_string(), None)).collect();
    Ok((document, changes))
}

/// Collects the keys of the options in a table.
fn flatten(parent: &OptionKey, table: &toml::Table, keys: &mut Vec<OptionKey>) {
    for (word, value) in table {
        let key = parent.child(word);
        match (lookup(&key.words()), value) {
            (SchemaLookup::Table, toml::Value::Table(below)) => flatten(&key, below, keys),
            _ => keys.push(key),
        }
    }
}

/// Adds the options of `new` to a document, and replaces those that it has.
pub fn merge(document: &mut toml::Table, new: toml::Table) {
    for (word, value) in new {
        match (document.get_mut(&word), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(below)) => merge(old, below),
            (_, value) => drop(document.insert(word, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(text: &str) -> (String, String) {
        match parse(text) {
            Err(ConfigChangeError::Rejected(mut errors)) => errors.remove(0),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn only_options_of_providers_and_sources_are_accepted() {
        let text = "[access]\nproviders = [\"http\"]\n[access.http]\nurl = \"http://h/\"\n[access.http.body]\nuser = \"${username}\"";
        let (document, changes) = parse(text).expect("valid options");
        let keys: Vec<&str> = changes.keys().map(String::as_str).collect();
        assert_eq!(keys, ["access.http.body.user", "access.http.url", "access.providers"]);
        assert_eq!(document["access"]["http"]["url"].as_str(), Some("http://h/"));
        for (text, key) in [
            ("[api]\nbind = \"0.0.0.0:1\"", "api.bind"),
            ("[access]\nanonymous = \"always\"", "access.anonymous"),
            ("[access.users]\nx = \"y\"", "access.users.x"),
            ("", ""),
        ] {
            assert_eq!(rejection(text).0, key, "{text}");
        }
        let (key, reason) = rejection("[access]\nproviders = [");
        assert!(key.is_empty() && reason.starts_with("line 2"), "{reason}");
    }

    #[test]
    fn merging_replaces_single_options() {
        let mut document: toml::Table = "[access]\nrules = []\n[access.http]\nurl = \"a\"\ntimeout = \"1s\""
            .parse()
            .expect("TOML");
        let new = "[access.http]\nurl = \"b\"".parse().expect("TOML");
        merge(&mut document, new);
        assert_eq!(document["access"]["http"]["url"].as_str(), Some("b"));
        assert_eq!(document["access"]["http"]["timeout"].as_str(), Some("1s"));
        assert!(document["access"]["rules"].is_array());
    }
}
