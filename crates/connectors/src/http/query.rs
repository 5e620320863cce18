//! Secrets in the query of an action's path. Values of parameters are shown as `***`, unless they consist of
//! placeholders. A path that was read from the API and is sent back gets the stored values again.

use crate::secret::REDACTED;

/// A parameter of a query: its name, and its value if it has a `=`.
type QueryParameter<'a> = (&'a str, Option<&'a str>);

/// Returns a path without the values of its query.
pub fn hide_query_values(path: &str) -> String {
    let Some((start, query)) = split_outside(path, '?') else {
        return path.to_owned();
    };
    let shown = parameters(query).map(|(name, value)| match value {
        Some(value) if !is_shown(value) => format!("{name}={REDACTED}"),
        Some(value) => format!("{name}={value}"),
        None => name.to_owned(),
    });
    format!("{start}?{}", shown.collect::<Vec<_>>().join("&"))
}

/// Replaces `***` in the query of `new` by the values of `old`. `None`: no value is stored for one of them, or several
/// are.
pub fn restore_query_values(new: &str, old: Option<&str>) -> Option<String> {
    let Some((start, query)) = split_outside(new, '?') else {
        return Some(new.to_owned());
    };
    let stored = old
        .and_then(|old| split_outside(old, '?'))
        .map_or("", |(_, query)| query);
    let mut restored = Vec::new();
    for (index, (name, value)) in parameters(query).enumerate() {
        // A name can occur several times.
        let of_name = |(other, _): &QueryParameter<'_>| *other == name;
        let earlier = parameters(query).take(index).filter(of_name).count();
        let is_clear = parameters(query).filter(of_name).count() == parameters(stored).filter(of_name).count();
        let value = match value {
            Some(REDACTED) if is_clear => Some(parameters(stored).filter(of_name).nth(earlier)?.1?),
            Some(REDACTED) => return None,
            value => value,
        };
        restored.push(value.map_or(name.to_owned(), |value| format!("{name}={value}")));
    }
    Some(format!("{start}?{}", restored.join("&")))
}

/// Whether a value of a parameter or a header has no text of its own.
pub fn is_shown(value: &str) -> bool {
    let mut rest = value;
    while let Some((_, after)) = rest.strip_prefix("${").and_then(|rest| rest.split_once('}')) {
        rest = after;
    }
    rest.is_empty()
}

fn parameters(query: &str) -> impl Iterator<Item = QueryParameter<'_>> {
    let mut rest = (!query.is_empty()).then_some(query);
    std::iter::from_fn(move || {
        let (parameter, after) = match split_outside(rest?, '&') {
            Some((parameter, after)) => (parameter, Some(after)),
            None => (rest?, None),
        };
        rest = after;
        Some(match split_outside(parameter, '=') {
            Some((name, value)) => (name, Some(value)),
            None => (parameter, None),
        })
    })
}

/// Splits at the first mark that is not part of a placeholder.
fn split_outside(text: &str, mark: char) -> Option<(&str, &str)> {
    let mut in_placeholder = false;
    let position = text.char_indices().find_map(|(at, character)| {
        in_placeholder = match character {
            '$' if text[at..].starts_with("${") => true,
            '}' => false,
            _ => in_placeholder,
        };
        (character == mark && !in_placeholder).then_some(at)
    })?;
    Some((&text[..position], &text[position + mark.len_utf8()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_placeholders_are_hidden() {
        for (path, shown) in [
            ("/a", "/a"),
            ("", ""),
            ("?token=x", "?token=***"),
            (
                "/a?token=x&t=${payload.t}&n=&flag",
                "/a?token=***&t=${payload.t}&n=&flag",
            ),
            ("/a?token=x=y?z", "/a?token=***"),
            ("/a?t=x${payload.t}", "/a?t=***"),
            ("/a?t=${payload.t}${clientid}", "/a?t=${payload.t}${clientid}"),
            (
                "/${payload.q?}?t=${payload['a&b=c']}&s=1",
                "/${payload.q?}?t=${payload['a&b=c']}&s=***",
            ),
        ] {
            assert_eq!(hide_query_values(path), shown, "{path}");
        }
    }

    #[test]
    fn hidden_values_are_restored_by_name() {
        let stored = Some("/a?token=x&t=${t}&k=1&k=2");
        for (new, restored) in [
            ("/b", Some("/b")),
            ("/b?token=***", Some("/b?token=x")),
            ("/a?token=***&t=${t}&k=***&k=***", Some("/a?token=x&t=${t}&k=1&k=2")),
            ("/a?k=new&k=***", Some("/a?k=new&k=2")),
            ("/a?k=***", None),
            ("/a?key=***", None),
            ("/a?k=***&k=***&k=***", None),
        ] {
            assert_eq!(restore_query_values(new, stored).as_deref(), restored, "{new}");
        }
        assert_eq!(restore_query_values("/a?k=***", None), None);
        assert_eq!(restore_query_values("/a?k=1", None).as_deref(), Some("/a?k=1"));
    }
}
