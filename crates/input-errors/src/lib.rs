//! Texts about invalid input, for people: errors of serde in plain English, and suggestions for misspelt words.

use std::borrow::Cow;
use std::fmt::Display;

/// Rewrites an error of serde, whose texts name Rust types. `invalid type: sequence, expected struct Limits at line 2
/// column 5` becomes `found a list, expected an object at line 2 column 5`. A value of the wrong type is not repeated,
/// because it may be a secret.
pub fn plain(error: &(impl Display + ?Sized)) -> String {
    let error = error.to_string();
    let is_place = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b' ');
    let place_at = error.rfind(" at line ").filter(|at| is_place(&error[*at..]));
    let (message, place) = error.split_at(place_at.unwrap_or(error.len()));
    let mismatch = |kind| message.strip_prefix(kind)?.rsplit_once(", expected ");
    if message.starts_with("data did not match any variant of ") {
        return format!("the value has none of the accepted forms{place}");
    }
    let (found, wanted) = if let Some((found, wanted)) = mismatch("invalid type: ") {
        (found_type(found).into(), wanted)
    } else if let Some((found, wanted)) = mismatch("invalid value: ") {
        (found_value(found), wanted)
    } else if let Some((count, wanted)) = mismatch("invalid length ") {
        (format!("length {count}"), wanted)
    } else {
        return error.replacen("unknown variant ", "unknown value ", 1);
    };
    format!("found {found}, expected {}{place}", expected(wanted))
}

fn found_type(text: &str) -> &str {
    match text.split(' ').next().unwrap_or(text) {
        "sequence" => "a list",
        "map" | "newtype" | "tuple" | "struct" | "enum" => "an object",
        "string" | "character" => "a string",
        "boolean" => "a boolean",
        "integer" | "floating" => "a number",
        "unit" if text == "unit variant" => "a string",
        "null" | "unit" | "Option" => "null",
        _ => text,
    }
}

/// Describes a value of the right type.
fn found_value(text: &str) -> String {
    let number = text
        .strip_prefix("integer ")
        .or_else(|| text.strip_prefix("floating point "));
    match number {
        Some(number) => format!("number {number}"),
        None if text.contains(['"', '`']) => text.to_owned(),
        None => found_type(text).to_owned(),
    }
}

fn expected(text: &str) -> Cow<'_, str> {
    let count = text.rsplit(' ').find_map(|word| word.parse::<usize>().ok());
    let begins = |words: &[&str]| words.iter().any(|word| text.starts_with(word));
    if let Some(number) = whole_number(text) {
        number.into()
    } else if begins(&[
        "struct ",
        "internally tagged ",
        "adjacently tagged ",
        "newtype ",
        "a map",
    ]) || text == "map"
    {
        "an object".into()
    } else if begins(&["tuple ", "a tuple ", "an array of length ", "a sequence"]) {
        count.map_or("a list".into(), |count| format!("a list of {count} elements").into())
    } else if begins(&["enum ", "variant ", "unit variant", "a borrowed string", "a character"]) {
        "a string".into()
    } else {
        match text {
            "unit" | "option" => "null",
            "a boolean" => "true or false",
            "f32" | "f64" => "a number",
            "path string" => "a path",
            // The text of every enum. It does not say which forms the enum has.
            "string or map" => "a string",
            "map with a single key" => "a string or an object with one key",
            text if text.starts_with("unit struct ") => "null",
            text => text,
        }
        .into()
    }
}

/// Describes an integer type such as `u16` or `a nonzero u16`.
fn whole_number(text: &str) -> Option<String> {
    let (plain, nonzero) = (text.trim_start_matches("a nonzero "), text.starts_with("a nonzero "));
    let (sign, bits) = plain.split_at_checked(1)?;
    let bits = match bits {
        "size" => 64,
        bits => bits.parse::<u32>().ok().filter(|bits| (8..=64).contains(bits))?,
    };
    match sign {
        "u" if bits == 64 => Some(format!("a whole number of at least {}", u8::from(nonzero))),
        "u" => Some(format!(
            "a whole number from {} to {}",
            u8::from(nonzero),
            u64::MAX >> (64 - bits)
        )),
        "i" if bits == 64 => Some("a whole number".into()),
        "i" => Some(format!(
            "a whole number from {} to {}",
            i64::MIN >> (64 - bits),
            i64::MAX >> (64 - bits)
        )),
        _ => None,
    }
}

/// Returns the most similar name of `known`, if it differs from the word in only a few letters.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let distance_max = (word.chars().count() / 3).clamp(1, 3);
    let near = known
        .into_iter()
        .map(|name| (strsim::osa_distance(&word, &name.to_lowercase()), name));
    near.filter(|(distance, _)| *distance <= distance_max)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_serde_name_no_rust_types() {
        for (error, text) in [
            (
                "invalid type: sequence, expected struct MqttSubscription at line 1 column 20",
                "found a list, expected an object at line 1 column 20",
            ),
            (
                "invalid type: string \"secret, expected u8\", expected internally tagged enum Authentication",
                "found a string, expected an object",
            ),
            ("invalid type: null, expected a sequence", "found null, expected a list"),
            (
                "invalid type: unit value, expected a boolean",
                "found null, expected true or false",
            ),
            (
                "invalid type: integer `5`, expected string or map",
                "found a number, expected a string",
            ),
            (
                "invalid type: newtype variant, expected unit variant",
                "found an object, expected a string",
            ),
            (
                "invalid type: unit variant, expected newtype variant",
                "found a string, expected an object",
            ),
            (
                "invalid type: floating point `1.5`, expected i64",
                "found a number, expected a whole number",
            ),
            (
                "invalid value: integer `-1`, expected u16",
                "found number `-1`, expected a whole number from 0 to 65535",
            ),
            (
                "invalid value: integer `0`, expected a nonzero u32 at line 3 column 1",
                "found number `0`, expected a whole number from 1 to 4294967295 at line 3 column 1",
            ),
            (
                "invalid value: integer `300`, expected i8",
                "found number `300`, expected a whole number from -128 to 127",
            ),
            (
                "invalid value: map, expected map with a single key",
                "found an object, expected a string or an object with one key",
            ),
            (
                "invalid value: string \"integer\", expected a topic",
                "found string \"integer\", expected a topic",
            ),
            (
                "invalid length 1, expected tuple struct Pair with 2 elements",
                "found length 1, expected a list of 2 elements",
            ),
            (
                "invalid length 3, expected an array of length 2",
                "found length 3, expected a list of 2 elements",
            ),
            (
                "data did not match any variant of untagged enum Direct at line 1 column 9",
                "the value has none of the accepted forms at line 1 column 9",
            ),
            (
                "unknown variant `on`, expected `allow` or `deny`",
                "unknown value `on`, expected `allow` or `deny`",
            ),
            (
                "invalid type: map, expected a template of all user properties",
                "found an object, expected a template of all user properties",
            ),
            (
                "missing field `topic` at line 1 column 2",
                "missing field `topic` at line 1 column 2",
            ),
        ] {
            assert_eq!(plain(error), text);
        }
    }

    #[test]
    fn typos_are_matched_and_other_words_are_not() {
        const KNOWN: [&str; 5] = ["topic", "payload", "qos", "retain", "keepAlive"];
        assert_eq!(nearest("topc", KNOWN), Some("topic"));
        assert_eq!(nearest("paylaod", KNOWN), Some("payload"));
        assert_eq!(nearest("RETAIN", KNOWN), Some("retain"));
        assert_eq!(nearest("keepalive", KNOWN), Some("keepAlive"));
        assert_eq!(nearest("colour", KNOWN), None);
        assert_eq!(nearest("foo", KNOWN), None);
        assert_eq!(nearest(&"x".repeat(10_000), KNOWN), None);
    }
}
