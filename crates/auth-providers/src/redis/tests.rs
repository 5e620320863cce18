//! Tests of commands and answers of Redis.

use super::*;

#[test]
fn commands_of_emqx_are_read() {
    for (text, key, fields) in [
        (
            "HMGET mqtt_user:${username} password_hash salt is_superuser",
            "mqtt_user:${username}",
            Some(vec!["password_hash", "salt", "is_superuser"]),
        ),
        (
            "hget  mqtt:${clientid} password ",
            "mqtt:${clientid}",
            Some(vec!["password"]),
        ),
        ("HGETALL \"users of ${username}\"", "users of ${username}", None),
    ] {
        let fields = fields.map(|fields| fields.into_iter().map(str::to_owned).collect());
        let key = key.to_owned();
        assert_eq!(ReadCommand::parse(text), Ok(ReadCommand { key, fields }), "{text}");
    }
}

#[test]
fn other_commands_are_errors() {
    for (text, reason) in [
        ("", "needs a command and a key"),
        ("HMGET", "needs a command and a key"),
        ("HMGET mqtt_user password_hash", "placeholder"),
        ("GET mqtt_user:${username}", "expected HMGET, HGET or HGETALL"),
        ("HMGET mqtt_user:${username}", "needs the field password_hash"),
        ("HMGET mqtt_user:${username} salt", "needs the field password_hash"),
        (
            "HMGET mqtt_user:${username} password_hash hash",
            "unknown field \"hash\"",
        ),
        ("HGET mqtt_user:${username} password_hash salt", "one field"),
        ("HGETALL mqtt_user:${username} password_hash", "a key only"),
        ("HMGET \"mqtt_user:${username} password_hash", "not closed"),
    ] {
        let error = ReadCommand::parse(text).expect_err(text);
        assert!(error.starts_with("cmd: ") && error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_hash_with_other_fields_only_is_no_user() {
    let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    assert!(user_row(Vec::new()).is_none());
    assert!(user_row(vec![field("last_seen", "1")]).is_none());
    let row = user_row(vec![field("is_superuser", "1")]).unwrap();
    assert!(row.is_superuser && row.password_hash.is_none());
    let both = [field("password", "old"), field("password_hash", "new")];
    for fields in [both.to_vec(), both.into_iter().rev().collect()] {
        assert_eq!(user_row(fields).unwrap().password_hash.unwrap(), b"new");
    }
}
