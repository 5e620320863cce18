//! Queries of mosquitto-go-auth as queries of tidewire, which need names for their columns.

/// How a query marks its parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// `$1`, `$2`.
    Numbered,
    /// `?`.
    Question,
    /// Both.
    Either,
}

/// Returns a query with the columns `password_hash` and `is_superuser`.
pub fn of_user(user: &str, superuser: Option<&str>, marks: Marks) -> Result<String, String> {
    let user = replaced(user, marks, &["${username}"])?;
    let Some(superuser) = superuser else {
        return Ok(format!(
            "WITH go_auth_user (password_hash) AS ({user}\n) SELECT password_hash FROM go_auth_user LIMIT 1"
        ));
    };
    let superuser = replaced(superuser, marks, &["${username}"])?;
    Ok(format!(
        "WITH go_auth_user (password_hash) AS ({user}\n), go_auth_super (number) AS ({superuser}\n) SELECT \
         password_hash, (SELECT number FROM go_auth_super LIMIT 1) > 0 AS is_superuser FROM go_auth_user LIMIT 1"
    ))
}

/// Returns a query of access rules.
///
/// The plug-in asks for the topics of one access: 1 to receive, 2 to publish, 4 to subscribe. A subscription needs a
/// topic that is allowed for both 1 and 4. The placeholders `%c` and `%u` become those of tidewire. Topics that have
/// another meaning in tidewire are left out.
pub fn of_rules(query: &str, marks: Marks) -> Result<String, String> {
    let [read, write, subscribe] = ["1", "2", "4"].map(|access| replaced(query, marks, &["${username}", access]));
    let (read, write, subscribe) = (read?, write?, subscribe?);
    // Types of bytes are compared exactly, whatever the collation of the topics is.
    let (position, exact) = match marks {
        Marks::Numbered => ("strpos", "CAST(topic AS text)"),
        Marks::Question => ("instr", "CAST(topic AS BINARY)"),
        Marks::Either => ("instr", "CAST(topic AS BLOB)"),
    };
    // Otherwise the text would be a placeholder of the query. In MySQL, `||` is not a concatenation.
    let after_dollar = |rest: &str| match marks {
        Marks::Question => format!("CONCAT('$', '{rest}')"),
        Marks::Numbered | Marks::Either => format!("'$' || '{rest}'"),
    };
    let (client, user, begin) = (
        after_dollar("{clientid}"),
        after_dollar("{username}"),
        after_dollar("{"),
    );
    let topic = format!("replace(replace(topic, '%c', {client}), '%u', {user}) AS topic");
    // Mosquitto denies everything to a client with a wildcard in its name (auth_plugin_deny_special_chars).
    let is_plain = format!(
        "topic NOT LIKE 'eq %' AND {position}(topic, {begin}) = 0 AND {position}(${{username}}, '+') = 0 AND \
         {position}(${{username}}, '#') = 0"
    );
    Ok(format!(
        "WITH go_auth_read (topic) AS ({read}\n), go_auth_write (topic) AS ({write}\n), go_auth_subscribe (topic) AS \
         ({subscribe}\n) SELECT 'allow' AS permission, 'publish' AS action, {topic} FROM go_auth_write WHERE {is_plain} \
         UNION ALL SELECT 'allow' AS permission, 'subscribe' AS action, {topic} FROM go_auth_read WHERE {is_plain} AND \
         {exact} IN (SELECT {exact} FROM go_auth_subscribe)"
    ))
}

/// Replaces the parameters outside of quotes. Each must have a value, and the first one must occur.
fn replaced(query: &str, marks: Marks, values: &[&str]) -> Result<String, String> {
    let query = query.trim().trim_end_matches(';').trim_end();
    let mut out = String::with_capacity(query.len());
    let mut rest = query;
    let mut quote = None;
    let (mut questions, mut has_first) = (0, false);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"' | '`') => quote = Some(c),
            (None, '$') if marks != Marks::Question => {
                let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                if digits > 0 {
                    let number: usize = rest[..digits]
                        .parse()
                        .map_err(|_| "a parameter of its query is invalid")?;
                    let value = number.checked_sub(1).and_then(|index| values.get(index));
                    out.push_str(value.ok_or("its query has other parameters than the plug-in")?);
                    has_first |= number == 1;
                    rest = &rest[digits..];
                    continue;
                }
                if rest.starts_with('{') {
                    return Err("its query contains ${".to_owned());
                }
            }
            (None, '?') if marks != Marks::Numbered => {
                let value = values.get(questions);
                out.push_str(value.ok_or("its query has other parameters than the plug-in")?);
                questions += 1;
                has_first = true;
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
    match (quote, has_first) {
        (Some(_), _) => Err("its query ends inside of quotes".to_owned()),
        (None, false) => Err("its query does not compare the user name".to_owned()),
        (None, true) => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_placeholders() {
        for (query, marks, expected) in [
            (
                "select a from b where c = $1 limit 1;",
                Marks::Numbered,
                "select a from b where c = ${username} limit 1",
            ),
            (
                "select '$1' from b where c = $1",
                Marks::Numbered,
                "select '$1' from b where c = ${username}",
            ),
            (
                "select '?' from b where c = ?",
                Marks::Question,
                "select '?' from b where c = ${username}",
            ),
            (
                "select a from b where c = $1",
                Marks::Either,
                "select a from b where c = ${username}",
            ),
        ] {
            assert_eq!(replaced(query, marks, &["${username}"]).as_deref(), Ok(expected));
        }
        for (query, part) in [
            ("select $2", "other parameters"),
            ("select $10", "other parameters"),
            ("select 1", "does not compare"),
            ("select 'x", "inside of quotes"),
            ("select ${a} = $1", "contains ${"),
        ] {
            let error = replaced(query, Marks::Numbered, &["${username}"]).unwrap_err();
            assert!(error.contains(part), "{query}: {error}");
        }
        assert!(replaced("a = ? and b = ?", Marks::Question, &["${username}"]).is_err());
    }

    #[test]
    fn a_subscription_needs_both_accesses() {
        let numbered = "SELECT topic FROM acl WHERE username = $1 AND rw & $2 > 0";
        let questions = "SELECT topic FROM acl WHERE username = ? AND rw & ? > 0";
        for (query, marks, topic, exact) in [
            (
                numbered,
                Marks::Numbered,
                "'$' || '{clientid}'",
                "CAST(topic AS text) IN",
            ),
            (
                questions,
                Marks::Question,
                "CONCAT('$', '{clientid}')",
                "CAST(topic AS BINARY) IN",
            ),
            (
                questions,
                Marks::Either,
                "'$' || '{clientid}'",
                "CAST(topic AS BLOB) IN",
            ),
            (numbered, Marks::Either, "'$' || '{clientid}'", "CAST(topic AS BLOB) IN"),
        ] {
            let query = of_rules(query, marks).unwrap();
            for part in [
                "rw & 1 > 0\n), go_auth_write",
                "rw & 2 > 0\n), go_auth_subscribe",
                "rw & 4 > 0\n) SELECT 'allow'",
                topic,
                exact,
            ] {
                assert!(query.contains(part), "{part}\n{query}");
            }
        }
        assert!(of_rules("SELECT topic FROM acl WHERE $3 = $1", Marks::Numbered).is_err());
    }
}
