//! Parses a statement with templates into one with numbered parameters.
//!
//! `VALUES (${a}, '${b}')` becomes `VALUES ($1, $2)`. Quotes around a single template are removed, because statements
//! for products that paste text have them. Anywhere else in a string, an identifier or a comment a template is an
//! error, because a parameter is impossible there.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SqlTemplate {
    pub sql: String,
    /// The template of each parameter, in order.
    pub templates: Vec<String>,
}

impl SqlTemplate {
    pub fn parse(text: &str) -> Result<SqlTemplate, String> {
        let mut statement = SqlTemplate {
            sql: String::with_capacity(text.len()),
            templates: Vec::new(),
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let taken = if rest.starts_with("${") {
                statement.parameter(rest)?
            } else if let Some(template) = quoted_template(rest) {
                statement.push_parameter(template);
                template.len() + 2
            } else {
                let length = literal_length(rest).unwrap_or(first.len_utf8());
                let part = &rest[..length];
                if let Some(at) = part.find("${").filter(|_| length > first.len_utf8()) {
                    let near: String = part[at..].chars().take(40).collect();
                    return Err(format!(
                        "sql: `{near}` is inside quotes or a comment; remove the quotes or the comment"
                    ));
                }
                statement.sql.push_str(part);
                length
            };
            rest = &rest[taken..];
        }
        statement.check()
    }

    fn parameter(&mut self, rest: &str) -> Result<usize, String> {
        let length = template_length(rest).ok_or_else(|| {
            format!(
                "sql: `{}` has no closing `}}`",
                rest.chars().take(40).collect::<String>()
            )
        })?;
        self.push_parameter(&rest[..length]);
        Ok(length)
    }

    fn push_parameter(&mut self, template: &str) {
        // A repeated template gets a parameter of its own, because its type may differ.
        self.templates.push(template.to_owned());
        self.sql.push_str(&format!("${}", self.templates.len()));
    }

    fn check(self) -> Result<SqlTemplate, String> {
        match self.templates.len() {
            _ if self.sql.trim().is_empty() => Err("sql: must not be empty".to_owned()),
            0 => Err("sql: needs at least one template, for example ${payload}".to_owned()),
            1..=65535 => Ok(self),
            more => Err(format!("sql: has {more} templates; PostgreSQL allows at most 65535")),
        }
    }
}

/// Returns the template of `'${x}'` without anything else between the quotes.
fn quoted_template(rest: &str) -> Option<&str> {
    let inner = rest.strip_prefix('\'')?;
    let length = inner.starts_with("${").then(|| template_length(inner))??;
    let after = &inner[length..];
    // Two quotes are an escaped quote.
    (after.starts_with('\'') && !after.starts_with("''")).then_some(&inner[..length])
}

fn template_length(rest: &str) -> Option<usize> {
    Some(rest.find('}')? + 1)
}

/// Returns the length of the string, identifier or comment at the beginning of `rest`; the whole length if it is not
/// closed.
fn literal_length(rest: &str) -> Option<usize> {
    let end_of = |open: usize, close: &str| {
        rest[open..]
            .find(close)
            .map_or(rest.len(), |at| open + at + close.len())
    };
    match rest.as_bytes() {
        // An escaped quote begins another literal, with the same result.
        [b'\'', ..] => Some(end_of(1, "'")),
        [b'"', ..] => Some(end_of(1, "\"")),
        [b'-', b'-', ..] => Some(end_of(2, "\n")),
        [b'/', b'*', ..] => Some(end_of(2, "*/")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_become_parameters() {
        for (text, sql, templates) in [
            (
                "INSERT INTO t VALUES (${a}, ${payload.b[1]})",
                "INSERT INTO t VALUES ($1, $2)",
                vec!["${a}", "${payload.b[1]}"],
            ),
            (
                "SELECT f('${a}', 'it''s', ${a}::int)",
                "SELECT f($1, 'it''s', $2::int)",
                vec!["${a}", "${a}"],
            ),
            (
                "SELECT \"$col\", '$', $1, ${ü} -- $ 'x\n, ${y} /* ' */",
                "SELECT \"$col\", '$', $1, $1 -- $ 'x\n, $2 /* ' */",
                vec!["${ü}", "${y}"],
            ),
        ] {
            let statement = SqlTemplate::parse(text).expect(text);
            assert_eq!(
                (statement.sql.as_str(), statement.templates),
                (sql, templates.iter().map(|t| t.to_string()).collect())
            );
        }
    }

    #[test]
    fn templates_in_strings_and_comments_are_errors() {
        for (text, reason) in [
            ("SELECT 'x ${a}'", "quotes"),
            ("SELECT '${a}'''", "quotes"),
            ("SELECT \"${a}\"", "quotes"),
            ("SELECT 1 -- ${a}", "comment"),
            ("SELECT 1 /* ${a} */", "comment"),
            ("SELECT ${a", "no closing `}`"),
            ("SELECT 1", "at least one template"),
            (" ", "empty"),
        ] {
            let error = SqlTemplate::parse(text).expect_err(text);
            assert!(error.starts_with("sql: ") && error.contains(reason), "{text}: {error}");
        }
    }
}
