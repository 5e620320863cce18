//! Parses a statement with templates into one with parameters, and describes the rows that a lookup returns.
//!
//! `VALUES (${a}, '${b}')` becomes `VALUES ($1, $2)`, or `VALUES (?, ?)`. Quotes around a single template are removed,
//! because statements for products that paste text have them. Anywhere else in a string, an identifier or a comment a
//! template is an error, because a parameter is impossible there.

/// How a database writes parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlDialect {
    /// `$1`, `$2`: PostgreSQL.
    Numbered,
    /// `?`: MySQL and SQLite.
    QuestionMarks,
}

/// A statement with parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlTemplate {
    pub sql: String,
    /// The template of each parameter, in order.
    pub templates: Vec<String>,
    dialect: SqlDialect,
}

/// A row of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupRow {
    /// Names and values of the columns.
    pub columns: Vec<(String, LookupValue)>,
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupValue {
    Null,
    /// Text, bytes, the digits of an integer, or `true` or `false`.
    Bytes(Vec<u8>),
    /// A value of another type.
    Unsupported,
}

/// Why there is no answer about a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// No row can have one of the parameters, for example text in an integer column.
    InvalidValue,
    /// The database cannot be asked. The text is for operators.
    Failed(String),
}

impl LookupRow {
    /// Removes the value of a column. `None`: the result has no such column.
    pub fn take(&mut self, name: &str) -> Option<LookupValue> {
        let (_, value) = self.columns.iter_mut().find(|(column, _)| column == name)?;
        Some(std::mem::replace(value, LookupValue::Null))
    }
}

/// Returns whether text columns can have all these values: UTF-8 without NUL.
pub fn are_text(values: &[Vec<u8>]) -> bool {
    let is_text = |value: &Vec<u8>| !value.contains(&0) && std::str::from_utf8(value).is_ok();
    values.iter().all(is_text)
}

impl SqlTemplate {
    /// Parses the statement of the option `query`. The error names the option.
    pub fn parse_query(text: &str, dialect: SqlDialect) -> Result<SqlTemplate, String> {
        SqlTemplate::parse(text, dialect)
            .map_err(|problem| format!("query: {}", problem.strip_prefix("sql: ").unwrap_or(&problem)))
    }

    pub fn parse(text: &str, dialect: SqlDialect) -> Result<SqlTemplate, String> {
        let mut statement = SqlTemplate {
            sql: String::with_capacity(text.len()),
            templates: Vec::new(),
            dialect,
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let taken = if rest.starts_with("${") {
                statement.parameter(rest)?
            } else if let Some(template) = quoted_template(rest) {
                statement.push_parameter(template);
                template.len() + 2
            } else {
                let length = literal_length(rest, dialect).unwrap_or(first.len_utf8());
                let part = &rest[..length];
                if part == "?" && dialect == SqlDialect::QuestionMarks {
                    return Err("sql: found `?`, expected a placeholder such as ${username}".to_owned());
                }
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
        match self.dialect {
            SqlDialect::Numbered => self.sql.push_str(&format!("${}", self.templates.len())),
            SqlDialect::QuestionMarks => self.sql.push('?'),
        }
    }

    fn check(self) -> Result<SqlTemplate, String> {
        match self.templates.len() {
            _ if self.sql.trim().is_empty() => Err("sql: must not be empty".to_owned()),
            0 => Err("sql: needs at least one template, for example ${payload}".to_owned()),
            1..=65535 => Ok(self),
            more => Err(format!("sql: has {more} templates; at most 65535 are possible")),
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
fn literal_length(rest: &str, dialect: SqlDialect) -> Option<usize> {
    let end_of = |open: usize, close: &str| {
        rest[open..]
            .find(close)
            .map_or(rest.len(), |at| open + at + close.len())
    };
    match rest.as_bytes() {
        // An escaped quote begins another literal, with the same result.
        [b'\'', ..] => Some(end_of(1, "'")),
        [b'"', ..] => Some(end_of(1, "\"")),
        [b'`', ..] if dialect == SqlDialect::QuestionMarks => Some(end_of(1, "`")),
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
            let statement = SqlTemplate::parse(text, SqlDialect::Numbered).expect(text);
            assert_eq!(
                (statement.sql.as_str(), statement.templates),
                (sql, templates.iter().map(|t| t.to_string()).collect())
            );
        }
        let text = "SELECT `a?`, '?' FROM t WHERE a = '${a}' AND b = ${b} -- ?";
        let statement = SqlTemplate::parse(text, SqlDialect::QuestionMarks).unwrap();
        assert_eq!(statement.sql, "SELECT `a?`, '?' FROM t WHERE a = ? AND b = ? -- ?");
        assert_eq!(statement.templates, ["${a}", "${b}"]);
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
            let error = SqlTemplate::parse(text, SqlDialect::Numbered).expect_err(text);
            assert!(error.starts_with("sql: ") && error.contains(reason), "{text}: {error}");
        }
        for (text, reason) in [
            ("SELECT `${a}`", "quotes"),
            ("SELECT a FROM t WHERE a = ? AND b = ${b}", "found `?`"),
        ] {
            let error = SqlTemplate::parse_query(text, SqlDialect::QuestionMarks).expect_err(text);
            assert!(
                error.starts_with("query: ") && error.contains(reason),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_value_is_taken_from_its_column_once() {
        let value = LookupValue::Bytes(b"x".to_vec());
        let mut row = LookupRow {
            columns: vec![("a".to_owned(), value.clone())],
        };
        assert_eq!((row.take("A"), row.take("a")), (None, Some(value)));
        assert_eq!(row.take("a"), Some(LookupValue::Null));
        assert!(are_text(&[b"\xC3\xA4".to_vec(), Vec::new()]));
        assert!(!are_text(&[b"a\0".to_vec()]) && !are_text(&[b"\xC3".to_vec()]));
    }
}
