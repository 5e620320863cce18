//! Tests of the options and of documents. Logins are tested with a real server in `tests/database_logins`.

use auth::{HashAlgorithm, MacFunction, SaltPosition};
use connectors::mongodb::{MongoKind, MongoReadMode};

use super::*;

fn connection() -> MongoConnectorConfig {
    MongoConnectorConfig {
        kind: MongoKind::Single,
        servers: vec!["127.0.0.1:27017".to_owned()],
        replica_set: None,
        read_mode: MongoReadMode::Primary,
        database: "mqtt".to_owned(),
        user: None,
        password: None,
        auth_source: "admin".to_owned(),
        connections_max: 1,
        connect_timeout_ms: 1000,
        tls: None,
    }
}

fn config() -> MongodbConfig {
    MongodbConfig {
        connection: connection(),
        collection: "mqtt_user".to_owned(),
        filter: r#"{"username": "${username}"}"#.to_owned(),
        fields: MongodbFields {
            password_hash: "password_hash".to_owned(),
            salt: Some("salt".to_owned()),
            is_superuser: Some("is_superuser".to_owned()),
        },
        hash: HashSettings {
            algorithm: HashAlgorithm::Sha256,
            salt_position: SaltPosition::Prefix,
            mac: MacFunction::Sha256,
            iterations: 1,
            key_bytes: None,
        },
        timeout_ms: 1000,
    }
}

#[test]
fn fields_of_documents_have_several_types() {
    let source = MongodbSource::new(config()).unwrap();
    let document = BsonDocument::new()
        .with("password_hash", Bson::Binary(b"h".to_vec()))
        .with("salt", "s");
    let row = source.user_row(&document.clone().with("is_superuser", true)).unwrap();
    assert_eq!(row.password_hash.as_deref(), Some(&b"h"[..]));
    assert_eq!((row.salt.as_slice(), row.is_superuser), (&b"s"[..], true));
    for (value, expected) in [
        (Bson::Int32(1), true),
        (Bson::Double(1.0), false),
        (Bson::Int64(0), false),
        (Bson::Bool(false), false),
        (Bson::Null, false),
        (Bson::from("true"), true),
        (Bson::from("yes"), false),
        (Bson::Other(0x09), false),
        (Bson::Document(BsonDocument::new()), false),
    ] {
        let row = source
            .user_row(&document.clone().with("is_superuser", value.clone()))
            .unwrap();
        assert_eq!(row.is_superuser, expected, "{value:?}");
    }
    let nothing = source.user_row(&BsonDocument::new().with("salt", Bson::Null)).unwrap();
    assert!(nothing.password_hash.is_none() && nothing.salt.is_empty() && !nothing.is_superuser);
    let number = source.user_row(&BsonDocument::new().with("password_hash", 1));
    assert!(matches!(number, Err(SourceError::Invalid(reason)) if reason.contains("password_hash")));
}

#[test]
fn errors_name_the_option() {
    let with = |change: &dyn Fn(&mut MongodbConfig)| {
        let mut config = config();
        change(&mut config);
        MongodbSource::new(config).map(|_| ()).unwrap_err()
    };
    for (error, expected) in [
        (
            with(&|config| config.filter = "{}".to_owned()),
            "filter: needs a placeholder",
        ),
        (
            with(&|config| config.filter = r#"{"u": "${user}"}"#.to_owned()),
            "filter: unknown placeholder",
        ),
        (with(&|config| config.collection.clear()), "collection: "),
        (
            with(&|config| config.fields.password_hash = "a.b".to_owned()),
            "password_hash_field: ",
        ),
        (
            with(&|config| config.fields.salt = Some("$salt".to_owned())),
            "salt_field: ",
        ),
        (
            with(&|config| config.connection.servers = vec!["mongodb://x".to_owned()]),
            "servers: ",
        ),
        (
            with(&|config| config.connection.database = "a b".to_owned()),
            "database: ",
        ),
        (
            with(&|config| config.connection.user = Some("u".to_owned())),
            "password: ",
        ),
        (
            with(&|config| config.connection.kind = MongoKind::ReplicaSet),
            "replica_set_name: ",
        ),
    ] {
        assert!(error.starts_with(expected), "{error}");
    }
}
