//! Expressions that take an attribute of a client from its names, in the syntax of EMQX's `client_attrs_init`.
//!
//! | expression | value |
//! |---|---|
//! | `clientid`, `username`, `cn`, `dn` | the field |
//! | `nth(2, tokens(clientid, '-.'))` | the second part of the field, which is split at each of the characters |
//! | `regex_extract(cn, '^meter-([0-9]+)$')` | the first group of the first match, or the match if there is no group |
//!
//! An expression has no value if the field is missing, or if the result is empty.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// Memory of a compiled pattern.
const PATTERN_MEMORY_MAX: usize = 1 << 20;
/// Maximum length of an expression.
const EXPRESSION_BYTES_MAX: usize = 1024;

/// Fields of a client that an expression can use.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttributeFields<'a> {
    pub client_id: &'a str,
    /// The user name, if a provider has admitted the client with it. With JWT, the client may have chosen it.
    pub user_name: Option<&'a str>,
    /// Common name of the client certificate.
    pub common_name: Option<&'a str>,
    /// Subject of the client certificate.
    pub subject: Option<&'a str>,
}

/// An expression. Equal if the text is.
#[derive(Clone, Debug)]
pub struct AttributeExpression {
    text: Box<str>,
    field: Field,
    part: Part,
}

impl PartialEq for AttributeExpression {
    fn eq(&self, other: &AttributeExpression) -> bool {
        self.text == other.text
    }
}

#[derive(Clone, Copy, Debug)]
enum Field {
    ClientId,
    UserName,
    CommonName,
    Subject,
}

#[derive(Clone, Debug)]
enum Part {
    Whole,
    /// The part at the index. Empty parts do not count.
    Token {
        index: usize,
        separators: Box<str>,
    },
    Match(Regex),
}

/// Why a text is not an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeExpressionError {
    Syntax,
    TooLong,
    Pattern(String),
}

impl fmt::Display for AttributeExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeExpressionError::Syntax => f.write_str(
                "expected clientid, username, cn, dn, nth(NUMBER, tokens(FIELD, 'CHARACTERS')) or \
                 regex_extract(FIELD, 'PATTERN')",
            ),
            AttributeExpressionError::TooLong => write!(f, "it has more than {EXPRESSION_BYTES_MAX} bytes"),
            AttributeExpressionError::Pattern(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for AttributeExpressionError {}

impl AttributeExpression {
    pub fn parse(text: &str) -> Result<AttributeExpression, AttributeExpressionError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(AttributeExpressionError::TooLong);
        }
        let (field, part) = parts(text)?.ok_or(AttributeExpressionError::Syntax)?;
        Ok(AttributeExpression {
            text: text.into(),
            field,
            part,
        })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn uses_user_name(&self) -> bool {
        matches!(self.field, Field::UserName)
    }

    /// Returns the value for a client.
    pub fn value<'a>(&self, fields: &AttributeFields<'a>) -> Option<&'a str> {
        let field = match self.field {
            Field::ClientId => fields.client_id,
            Field::UserName => fields.user_name?,
            Field::CommonName => fields.common_name?,
            Field::Subject => fields.subject?,
        };
        let value = match &self.part {
            Part::Whole => field,
            Part::Token { index, separators } => {
                let mut tokens = field
                    .split(|c: char| separators.contains(c))
                    .filter(|token| !token.is_empty());
                tokens.nth(*index)?
            }
            Part::Match(pattern) => {
                let group = pattern.captures_len().min(2) - 1;
                let found = pattern.captures(field.as_bytes())?.get(group)?;
                // A pattern compares bytes, so it can cut a character.
                str::from_utf8(found.as_bytes()).ok()?
            }
        };
        Some(value).filter(|value| !value.is_empty())
    }
}

/// `None`: the text is not an expression.
fn parts(text: &str) -> Result<Option<(Field, Part)>, AttributeExpressionError> {
    let text = text.trim();
    if let Some(field) = field(text) {
        return Ok(Some((field, Part::Whole)));
    }
    if let Some(inner) = call(text, "regex_extract") {
        let Some((field, pattern)) = field_and_text(inner) else {
            return Ok(None);
        };
        let built = RegexBuilder::new(pattern)
            .unicode(false)
            .size_limit(PATTERN_MEMORY_MAX)
            .build();
        let pattern = built.map_err(|error| AttributeExpressionError::Pattern(error.to_string()))?;
        return Ok(Some((field, Part::Match(pattern))));
    }
    Ok(token(text))
}

fn token(text: &str) -> Option<(Field, Part)> {
    let (number, tokens) = call(text, "nth")?.split_once(',')?;
    let number: usize = number.trim().parse().ok()?;
    let (field, separators) = field_and_text(call(tokens.trim(), "tokens")?)?;
    let index = number.checked_sub(1)?;
    let separators = Some(separators).filter(|separators| !separators.is_empty())?.into();
    Some((field, Part::Token { index, separators }))
}

/// Returns the text between the parentheses of a call of the function.
fn call<'a>(text: &'a str, function: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(function)?.trim_start();
    rest.strip_prefix('(')?.strip_suffix(')')
}

/// Reads a field, a comma and a text in quotes. The text has no escapes, as in EMQX.
fn field_and_text(text: &str) -> Option<(Field, &str)> {
    let (name, rest) = text.split_once(',')?;
    let rest = rest.trim();
    let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = rest.strip_prefix(quote)?.strip_suffix(quote)?;
    Some((field(name.trim())?, inner)).filter(|_| !inner.contains(quote))
}

fn field(name: &str) -> Option<Field> {
    match name {
        "clientid" => Some(Field::ClientId),
        "username" => Some(Field::UserName),
        "cn" => Some(Field::CommonName),
        "dn" => Some(Field::Subject),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: AttributeFields<'_> = AttributeFields {
        client_id: "acme-.meter-17",
        user_name: Some("ann"),
        common_name: Some("meter-17"),
        subject: None,
    };

    #[test]
    fn expressions_have_the_values_of_emqx() {
        for (text, expected) in [
            ("clientid", Some("acme-.meter-17")),
            (" username ", Some("ann")),
            ("cn", Some("meter-17")),
            ("dn", None),
            ("nth(1, tokens(clientid, '-'))", Some("acme")),
            ("nth(2,tokens(clientid,\".-\"))", Some("meter")),
            ("nth(4, tokens(clientid, '.-'))", None),
            ("regex_extract(clientid, '^([a-z]+)-')", Some("acme")),
            ("regex_extract(cn, '\\d+')", Some("17")),
            ("regex_extract(cn, '^x')", None),
            ("regex_extract(cn, '^(x?)')", None),
        ] {
            let expression = AttributeExpression::parse(text).unwrap();
            assert_eq!(expression.value(&FIELDS), expected, "{text}");
            assert_eq!(expression.text(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "password",
            "client_attrs.x",
            "nth(0, tokens(clientid, '-'))",
            "nth(-1, tokens(clientid, '-'))",
            "nth(1, tokens(clientid, ''))",
            "nth(1, tokens(clientid, '-')",
            "nth(1, clientid)",
            "tokens(clientid, '-')",
            "regex_extract(clientid, [a-z])",
            "regex_extract(clientid, 'a' 'b')",
            "regex_extract(peerhost, 'a')",
            "concat(clientid, username)",
        ] {
            assert_eq!(
                AttributeExpression::parse(text),
                Err(AttributeExpressionError::Syntax),
                "{text}"
            );
        }
        let broken = AttributeExpression::parse("regex_extract(cn, '(')");
        assert!(matches!(broken, Err(AttributeExpressionError::Pattern(_))));
        let huge = AttributeExpression::parse("regex_extract(cn, 'a{1000}{1000}')");
        assert!(matches!(huge, Err(AttributeExpressionError::Pattern(_))));
        let long = AttributeExpression::parse(&"x".repeat(EXPRESSION_BYTES_MAX + 1));
        assert_eq!(long, Err(AttributeExpressionError::TooLong));
    }
}
