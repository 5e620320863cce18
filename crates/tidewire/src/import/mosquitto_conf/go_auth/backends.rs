//! Backends of mosquitto-go-auth that ask other systems.

use super::query::{self, Marks};
use super::{Options, Target};

/// Returns the provider of a backend, or why it has none.
pub fn provider(options: &Options<'_, '_, '_>, backend: &str) -> Result<Target, String> {
    match backend {
        "postgres" => postgresql(options, Target::new("access.postgresql", "postgresql")).and_then(|mut target| {
            users(options, "pg", Marks::Numbered, &mut target)?;
            Ok(target)
        }),
        "mysql" => mysql(options, Target::new("access.mysql", "mysql")).and_then(|mut target| {
            users(options, "mysql", Marks::Question, &mut target)?;
            Ok(target)
        }),
        "sqlite" => sqlite(options, Target::new("access.sqlite", "sqlite")).and_then(|mut target| {
            users(options, "sqlite", Marks::Either, &mut target)?;
            Ok(target)
        }),
        "ldap" => ldap(options),
        "http" => http(options),
        "jwt" => Err("tidewire does not ask a service or a database about tokens: set access.jwt".to_owned()),
        "redis" => Err("tidewire reads passwords from hashes of Redis, and not from texts".to_owned()),
        backend => Err(format!("tidewire has no provider for the backend {backend}")),
    }
}

/// Returns the source of access rules of a backend. `None`: the backend allows everything.
pub fn source(options: &Options<'_, '_, '_>, backend: &str) -> Result<Option<Target>, String> {
    let has = |name: &str| options.get(name).is_some_and(|value| !value.is_empty());
    match backend {
        "postgres" if !has("pg_aclquery") => Ok(None),
        "mysql" if !has("mysql_aclquery") => Ok(None),
        "sqlite" if !has("sqlite_aclquery") => Ok(None),
        "ldap" if !has("ldap_acl_topic_pattern_attribute") && !has("ldap_acl_acc_attribute") => Ok(None),
        "postgres" => {
            let target = postgresql(options, Target::new("access.source.postgresql", "postgresql"))?;
            rules(options, "pg", Marks::Numbered, target).map(Some)
        }
        "mysql" => {
            let target = mysql(options, Target::new("access.source.mysql", "mysql"))?;
            rules(options, "mysql", Marks::Question, target).map(Some)
        }
        "sqlite" => {
            let target = sqlite(options, Target::new("access.source.sqlite", "sqlite"))?;
            rules(options, "sqlite", Marks::Either, target).map(Some)
        }
        "http" => Err("tidewire sends no number of the access (acc) to the service".to_owned()),
        "redis" | "ldap" => Err(format!("tidewire reads no access rules from {backend}")),
        backend => Err(format!("tidewire has no access rules of the backend {backend}")),
    }
}

/// Connection to PostgreSQL. The plug-in has the same one for users and topics.
fn postgresql(options: &Options<'_, '_, '_>, mut target: Target) -> Result<Target, String> {
    target.put("pg_host", "host", options.get("pg_host").unwrap_or("localhost"));
    target.put("pg_port", "port", port(options.get("pg_port"), 5432)?);
    target.put("pg_dbname", "database", options.required("pg_dbname")?);
    target.put("pg_user", "user", options.required("pg_user")?);
    target.secret("pg_password", "password", options.required("pg_password")?);
    let mode = options.get("pg_sslmode").unwrap_or("verify-full");
    target.set("tls", mode != "disable");
    match mode {
        "disable" => target.used("pg_sslmode", "tls"),
        "verify-ca" => {
            target.changed("pg_sslmode", "verify", "tidewire also verifies the host name");
            certificates(options, "pg", &mut target)?;
        }
        // With a root certificate, the driver verifies it in this mode as well.
        "require" if options.get("pg_sslrootcert").is_none() => {
            target.put("pg_sslmode", "verify", false);
            certificates(options, "pg", &mut target)?;
        }
        _ => {
            target.used("pg_sslmode", "verify");
            certificates(options, "pg", &mut target)?;
        }
    }
    Ok(target)
}

fn mysql(options: &Options<'_, '_, '_>, mut target: Target) -> Result<Target, String> {
    match options.get("mysql_protocol").unwrap_or("tcp") {
        "unix" => {
            target.put("mysql_socket", "host", options.required("mysql_socket")?);
            target.used("mysql_protocol", "host");
        }
        _ => {
            target.put("mysql_host", "host", options.get("mysql_host").unwrap_or("localhost"));
            target.put("mysql_port", "port", port(options.get("mysql_port"), 3306)?);
            target.used("mysql_protocol", "host");
        }
    }
    target.put("mysql_dbname", "database", options.required("mysql_dbname")?);
    target.put("mysql_user", "user", options.required("mysql_user")?);
    target.secret("mysql_password", "password", options.required("mysql_password")?);
    let mode = options.get("mysql_sslmode").unwrap_or("false");
    target.put(
        "mysql_sslmode",
        "tls",
        matches!(mode, "true" | "skip-verify" | "custom"),
    );
    match mode {
        "skip-verify" => target.set("verify", false),
        "custom" => certificates(options, "mysql", &mut target)?,
        _ => {}
    }
    target.used("mysql_allow_native_passwords", "password");
    Ok(target)
}

fn sqlite(options: &Options<'_, '_, '_>, mut target: Target) -> Result<Target, String> {
    let source = options.required("sqlite_source")?;
    if source == "memory" {
        return Err("its database is in memory".to_owned());
    }
    target.put("sqlite_source", "file", options.conf.existing(source)?);
    Ok(target)
}

fn port(text: Option<&str>, default: u16) -> Result<i64, String> {
    let port = text.map_or(Ok(default), str::parse);
    let port = port.ok().filter(|port| *port > 0);
    port.map(i64::from).ok_or_else(|| "its port is not a number".to_owned())
}

fn certificates(options: &Options<'_, '_, '_>, prefix: &str, target: &mut Target) -> Result<(), String> {
    for (name, option) in [
        ("sslrootcert", "ca_file"),
        ("sslcert", "cert_file"),
        ("sslkey", "key_file"),
    ] {
        let name = format!("{prefix}_{name}");
        if let Some(file) = options.get(&name) {
            let path = options.conf.existing(file)?;
            target.put(name, option, path);
        }
    }
    Ok(())
}

/// Query of a user, and how its password is hashed.
fn users(options: &Options<'_, '_, '_>, prefix: &str, marks: Marks, target: &mut Target) -> Result<(), String> {
    let hasher = hasher(options, prefix);
    match hasher {
        "bcrypt" => target.set("password_hash_algorithm", "bcrypt"),
        "argon2id" => target.set("password_hash_algorithm", "argon2"),
        _ => {
            return Err("tidewire does not read the format PBKDF2$… of password hashes in a database".to_owned());
        }
    }
    for name in [format!("{prefix}_hasher"), "hasher".to_owned()] {
        target.used(name, "password_hash_algorithm");
    }
    let super_name = format!("{prefix}_superquery");
    let superuser = options.get(&super_name).filter(|query| !query.is_empty());
    let superuser = superuser.filter(|_| options.has_check(prefix, "superuser"));
    // The plug-in accepts integers only. MySQL and SQLite compare other values with numbers as well.
    let (superuser, left_out) = match marks {
        Marks::Numbered => (superuser, None),
        Marks::Question | Marks::Either => (None, superuser),
    };
    let user_name = format!("{prefix}_userquery");
    target.set(
        "query",
        query::of_user(options.required(&user_name)?, superuser, marks)?,
    );
    target.used(user_name, "query");
    if superuser.is_some() {
        target.changed(
            super_name,
            "query",
            "the server asks when a client connects, and not for each topic",
        );
    }
    if left_out.is_some() {
        target.changed(
            format!("{prefix}_superquery"),
            "query",
            "left out, so that there are no superusers: add the column is_superuser to the query",
        );
    }
    Ok(())
}

/// Query of the topics of a user.
fn rules(options: &Options<'_, '_, '_>, prefix: &str, marks: Marks, mut target: Target) -> Result<Target, String> {
    let name = format!("{prefix}_aclquery");
    target.set("query", query::of_rules(options.required(&name)?, marks)?);
    target.changed(
        name,
        "query",
        "a subscription needs a topic that the query returns for 1 (read) and for 4 (subscribe); the rules are read \
         when a client connects",
    );
    Ok(target)
}

/// The hasher of a backend, or else that of all.
pub fn hasher<'a>(options: &Options<'_, '_, 'a>, prefix: &str) -> &'a str {
    let own = options.get(&format!("{prefix}_hasher"));
    own.or_else(|| options.get("hasher")).unwrap_or("pbkdf2")
}

fn ldap(options: &Options<'_, '_, '_>) -> Result<Target, String> {
    let mut target = Target::new("access.ldap", "ldap");
    let url = options.get("ldap_url").unwrap_or("ldap://localhost:389");
    target.put("ldap_url", "servers", vec![url]);
    target.put("ldap_user_dn", "base_dn", literal(options.required("ldap_user_dn")?)?);
    target.put("ldap_bind_dn", "user", options.required("ldap_bind_dn")?);
    target.secret(
        "ldap_bind_password",
        "password",
        options.required("ldap_bind_password")?,
    );
    let filter = literal(options.required("ldap_user_filter")?)?;
    let (before, after) = filter
        .split_once("%s")
        .ok_or("its filter has no %s for the user name")?;
    if before.contains('%') || after.contains('%') {
        return Err("its filter has another % than one %s".to_owned());
    }
    target.put("ldap_user_filter", "filter", format!("{before}${{username}}{after}"));
    target.set("method", "bind");
    Ok(target)
}

/// A text that has no placeholders in the plug-in.
fn literal(text: &str) -> Result<&str, String> {
    match text.contains("${") {
        true => Err("one of its options contains ${".to_owned()),
        false => Ok(text),
    }
}

fn http(options: &Options<'_, '_, '_>) -> Result<Target, String> {
    let mut target = Target::new("access.http", "http");
    let is_tls = options.get("http_with_tls") == Some("true");
    let host = literal(options.required("http_host")?)?;
    let uri = literal(options.required("http_getuser_uri")?)?;
    let port = port(options.get("http_port"), if is_tls { 443 } else { 80 })?;
    if host.contains(['/', '@', '?', '#']) || !uri.starts_with('/') {
        return Err("its host and URI are not parts of a URL".to_owned());
    }
    let scheme = if is_tls { "https" } else { "http" };
    target.set("url", format!("{scheme}://{host}:{port}{uri}"));
    for name in ["http_host", "http_port", "http_with_tls"] {
        target.used(name, "url");
    }
    target.used("http_getuser_uri", "url");
    if let Some("json" | "text") = options.get("http_response_mode") {
        return Err("tidewire admits a client after the status 200, whatever the body is".to_owned());
    }
    target.put("http_response_mode", "answer", "status");
    if let "GET" | "PUT" = options.get("http_method").unwrap_or("POST") {
        return Err("tidewire sends a body only with the method POST".to_owned());
    }
    target.put("http_method", "method", "post");
    let format = if options.get("http_params_mode") == Some("form") {
        "form"
    } else {
        "json"
    };
    target.put("http_params_mode", "body_format", format);
    let fields = ["username", "password", "clientid"].map(|name| (name.to_owned(), format!("${{{name}}}").into()));
    target.set("body", toml::Table::from_iter(fields));
    if is_tls {
        let verify = options.get("http_verify_peer") == Some("true");
        target.put("http_verify_peer", "verify", verify);
    }
    if let Some(seconds) = options.get("http_timeout") {
        let seconds = seconds.parse::<u64>().ok().filter(|seconds| (1..=60).contains(seconds));
        let seconds = seconds.ok_or("its http_timeout is not a number of seconds from 1 to 60")?;
        target.put("http_timeout", "timeout", format!("{seconds}s"));
    }
    Ok(target)
}
