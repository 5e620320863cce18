//! Rules of NanoMQ. Its SQL has `SELECT fields FROM "filter" WHERE a AND b`, without functions, and WHERE can name the
//! new names of fields.

use std::path::Path;

use serde_json::json;

use super::bridges::connector;
use crate::import::settings::Setting;
use crate::import::setup::Setup;

/// `directory` is that of the configuration, for relative file names.
pub fn import(rules: &Setting<'_>, setup: &mut Setup, directory: &Path) {
    let repub = rules.get("repub");
    for (index, rule) in repub.get("rules").items().iter().enumerate() {
        if let Err(because) = republish(index + 1, rule, setup, directory) {
            rule.refuse_all(&because);
        }
    }
    for kind in ["postgresql", "timescaledb"] {
        for (name, database) in rules.get(kind).entries() {
            if let Err(because) = self::database(name, &database, setup) {
                database.refuse_all(&because);
            }
        }
    }
    rules
        .get("sqlite")
        .refuse("tidewire has no action of type SQLite; use an action of type file or http");
    rules
        .get("mysql")
        .refuse("tidewire has no action of type MySQL; use an action of type file or http");
    rules.get("option").refuse("rules are always on");
}

fn republish(number: usize, rule: &Setting<'_>, setup: &mut Setup, directory: &Path) -> Result<(), String> {
    let sql = rule.get("sql").filled().ok_or("its SQL is missing")?;
    let topic = rule.get("topic").filled().ok_or("its topic is missing")?;
    let query = Query::parse(sql).ok_or("its SQL cannot be read")?;
    let name = setup.free_name(&["connectors", "actions", "rules"], "republish", &format!("_{number}"));
    connector(&name, rule, setup, directory)?;
    let parameters = json!({"topic": topic, "payload": "${.}", "qos": "0", "retain": "false"});
    let action = json!({"type": "mqtt", "connector": name, "parameters": parameters});
    setup.define(&format!("actions.{name}"), &rule.path, &action);
    let definition = json!({"sql": query.text(), "actions": [format!("mqtt:{name}")]});
    setup.define(&format!("rules.{name}"), &rule.path, &definition);
    rule.get("topic").imported(&format!("actions.{name}"));
    rule.get("sql").imported(&format!("rules.{name}"));
    Ok(())
}

fn database(name: &str, from: &Setting<'_>, setup: &mut Setup) -> Result<(), String> {
    let name = setup.free_name(&["connectors"], name, "");
    let connection = from.get("conn");
    let password = connection.get("password").filled();
    let password = password.map(|text| setup.secret(&format!("{name}-password"), text));
    let key = format!("connectors.{name}");
    let address = connection.get("host").filled().ok_or("its host is missing")?;
    let (host, port) = match address.split_once(':') {
        Some((host, port)) => (
            host,
            Some(port.parse::<u16>().map_err(|_| "the port of its host is invalid")?),
        ),
        None => (address, None),
    };
    let mut config = json!({
        "host": host,
        "database": connection.get("database").filled().ok_or("its database is missing")?,
        "user": connection.get("username").filled().ok_or("its user is missing")?,
    });
    if let Some(password) = password {
        config["password"] = password.into();
    }
    if let Some(port) = port {
        config["port"] = port.into();
    }
    setup.define(&key, &from.path, &json!({"type": "postgresql", "config": config}));
    for option in ["host", "database", "username", "password"] {
        connection.get(option).imported(&key);
    }
    for (index, rule) in from.get("rules").items().iter().enumerate() {
        let part = setup.free_name(&["actions", "rules"], &name, &format!("_{}", index + 1));
        match insert(&name, &part, rule, setup) {
            Ok(()) => {
                rule.get("sql").imported(&format!("rules.{part}"));
                rule.get("table").imported(&format!("actions.{part}"));
            }
            Err(because) => rule.refuse(&because),
        }
    }
    Ok(())
}

fn insert(connector: &str, name: &str, rule: &Setting<'_>, setup: &mut Setup) -> Result<(), String> {
    let sql = rule.get("sql").filled().ok_or("its SQL is missing")?;
    let table = rule.get("table").filled().ok_or("its table is missing")?;
    let query = Query::parse(sql).ok_or("its SQL cannot be read")?;
    let columns = query.columns().ok_or("name the columns in SELECT instead of *")?;
    let columns: Vec<_> = columns
        .iter()
        .map(|column| json!({"name": column, "value": format!("${{{column}}}")}))
        .collect();
    let parameters = json!({"copy": {"table": table, "columns": columns}});
    let action = json!({"type": "postgresql", "connector": connector, "parameters": parameters});
    setup.define(&format!("actions.{name}"), &rule.path, &action);
    let definition = json!({"sql": query.text(), "actions": [format!("postgresql:{name}")]});
    setup.define(&format!("rules.{name}"), &rule.path, &definition);
    Ok(())
}

/// A query of NanoMQ.
struct Query {
    /// Expression and name. Without a name, the field has the name of its expression.
    fields: Vec<(String, Option<String>)>,
    from: String,
    condition: Option<String>,
}

impl Query {
    fn parse(sql: &str) -> Option<Query> {
        let select = keyword(sql, "select")?;
        let from = keyword(sql, "from")?;
        let condition = keyword(sql, "where");
        let fields = sql.get(select.1..from.0)?;
        let source = sql.get(from.1..condition.map_or(sql.len(), |condition| condition.0))?;
        let field = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            match words.as_slice() {
                [field] => Some(((*field).to_owned(), None)),
                [field, word, name] if word.eq_ignore_ascii_case("as") => {
                    Some(((*field).to_owned(), Some((*name).to_owned())))
                }
                _ => None,
            }
        };
        Some(Query {
            fields: fields.split(',').map(field).collect::<Option<_>>()?,
            from: source.trim().to_owned(),
            condition: condition.and_then(|condition| Some(sql.get(condition.1..)?.trim().to_owned())),
        })
    }

    /// Returns the SQL of tidewire, in which WHERE sees the fields of the message only.
    fn text(&self) -> String {
        let field = |(field, name): &(String, Option<String>)| match name {
            Some(name) => format!("{field} as {name}"),
            None => field.clone(),
        };
        let fields: Vec<String> = self.fields.iter().map(field).collect();
        let mut sql = format!("SELECT {} FROM {}", fields.join(", "), self.from);
        if let Some(condition) = &self.condition {
            sql.push_str(" WHERE ");
            sql.push_str(&self.without_names(condition));
        }
        sql
    }

    fn without_names(&self, condition: &str) -> String {
        let mut out = String::new();
        let mut word = String::new();
        let mut quote = None;
        for c in condition.chars().chain([' ']) {
            let is_word = quote.is_none() && (c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
            if is_word {
                word.push(c);
                continue;
            }
            let named = self
                .fields
                .iter()
                .find(|(_, name)| name.as_deref() == Some(word.as_str()));
            out.push_str(named.map_or(word.as_str(), |(field, _)| field));
            word.clear();
            quote = match (quote, c) {
                (None, '\'' | '"') => Some(c),
                (Some(open), c) if open == c => None,
                (quote, _) => quote,
            };
            out.push(c);
        }
        out.trim_end().to_owned()
    }

    /// Returns the names of the columns of a result.
    fn columns(&self) -> Option<Vec<String>> {
        let name = |(field, name): &(String, Option<String>)| match name {
            Some(name) => Some(name.clone()),
            None if field.contains(['*', '.']) => None,
            None => Some(field.clone()),
        };
        self.fields.iter().map(name).collect()
    }
}

/// Finds a keyword outside of quotes. Returns where it begins and ends.
fn keyword(sql: &str, word: &str) -> Option<(usize, usize)> {
    let mut quote = None;
    for (at, c) in sql.char_indices() {
        quote = match (quote, c) {
            (None, '\'' | '"') => Some(c),
            (Some(open), c) if open == c => None,
            (quote, _) => quote,
        };
        let end = at + word.len();
        let is_here = quote.is_none() && sql.get(at..end).is_some_and(|found| found.eq_ignore_ascii_case(word));
        let is_edge = |c: Option<char>| c.is_none_or(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')));
        if is_here && is_edge(sql[..at].chars().next_back()) && is_edge(sql[end..].chars().next()) {
            return Some((at, end));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn names_in_the_condition_become_fields() {
        let sql = "SELECT payload.x.y as y, payload.z AS z, topic FROM \"from/#\" WHERE y > 10 and z != 'y where'";
        let query = Query::parse(sql).expect("valid");
        assert_eq!(
            query.text(),
            "SELECT payload.x.y as y, payload.z as z, topic FROM \"from/#\" WHERE payload.x.y > 10 and payload.z != 'y where'"
        );
        assert_eq!(query.columns().expect("names"), ["y", "z", "topic"]);
        let all = Query::parse("select * from \"a\"").expect("valid");
        assert_eq!((all.text().as_str(), all.columns()), ("SELECT * FROM \"a\"", None));
        assert!(Query::parse("UPDATE x").is_none());
    }
}
