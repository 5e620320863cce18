//! Reads the user name and the roles from claims.

use serde_json::{Map, Value};

/// Maximum length of a user name, which appears in each line of the audit log.
const USER_NAME_BYTES_MAX: usize = 200;

/// Returns the value of a claim. A name with dots is also a path: `realm_access.roles`.
pub fn find<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    rest.split('.')
        .try_fold(claims.get(first)?, |value, segment| value.as_object()?.get(segment))
}

/// Returns the user name, or `None` for a value that a log or a list could show as another name.
pub fn user_name(claims: &Map<String, Value>, name: &str) -> Option<String> {
    let user_name = find(claims, name)?.as_str()?;
    let is_shown = |c: char| !c.is_control() && !is_invisible(c);
    let is_valid = !user_name.is_empty()
        && user_name.len() <= USER_NAME_BYTES_MAX
        && user_name.trim() == user_name
        && user_name.chars().all(is_shown);
    is_valid.then(|| user_name.to_owned())
}

/// Characters without a width, and those that change the direction of text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the values of a claim that is a text or a list of texts.
pub fn values(claims: &Map<String, Value>, name: &str) -> Option<Vec<String>> {
    match find(claims, name)? {
        Value::String(value) => Some(vec![value.clone()]),
        Value::Array(values) => Some(values.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims() -> Map<String, Value> {
        let claims = json!({
            "name": "ada", "https://example.com/roles": "a", "realm_access": {"roles": ["b", 7, "c"]}, "n": 1,
        });
        claims.as_object().unwrap().clone()
    }

    #[test]
    fn claims_are_found_by_name_and_by_path() {
        let values = |name: &str| values(&claims(), name);
        assert_eq!(values("https://example.com/roles"), Some(vec!["a".to_owned()]));
        assert_eq!(values("realm_access.roles"), Some(vec!["b".to_owned(), "c".to_owned()]));
        for absent in ["realm_access", "realm_access.roles.x", "n", "n.m", "x", "", "."] {
            assert_eq!(values(absent), None, "{absent}");
        }
    }

    #[test]
    fn misleading_user_names_are_refused() {
        assert_eq!(user_name(&claims(), "name").as_deref(), Some("ada"));
        for wrong in [
            "",
            " ada",
            "a\nb",
            "a\0",
            "\u{202e}ada",
            "a\u{200b}da",
            &"x".repeat(201),
        ] {
            let claims = json!({"name": wrong}).as_object().unwrap().clone();
            assert_eq!(user_name(&claims, "name"), None, "{wrong:?}");
        }
        assert_eq!(user_name(&claims(), "n"), None);
    }
}
