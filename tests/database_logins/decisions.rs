//! Decisions about clients that are the same for each database.

use super::*;

for_each_database!(
    the_row_of_the_user_decides,
    every_algorithm_verifies_passwords,
    values_of_clients_are_never_part_of_a_query,
    changed_rows_take_effect_after_the_lifetime_of_the_answers,
);

fn the_row_of_the_user_decides<C: Clients>() {
    let clients = C::new();
    clients.insert("nothing", None, "", false);
    clients.insert("broken", Some("not a hash"), "", true);
    // Values of clients never count as a failure of the database, which would admit them here.
    let server = clients.start(&[("on_failure", text("allow"))]);
    for (name, password, code) in [
        ("user", "public", ADMITTED),
        ("user", "Public", WRONG),
        ("user", "", WRONG),
        ("root", "secret", ADMITTED),
        ("ROOT", "secret", WRONG),
        ("root ", "secret", WRONG),
        // The next provider knows the user `ann` and not this one.
        ("nobody", "public", WRONG),
        ("", "public", WRONG),
        ("\u{1F511}", "public", WRONG),
        ("ann", "local", ADMITTED),
        ("ann", "public", WRONG),
        ("nothing", "public", 0x87),
        ("broken", "not a hash", WRONG),
    ] {
        // The second answer is from a cache.
        for _ in 0..2 {
            assert_eq!(login(&server, name, password), code, "{name} {password}");
        }
    }
    for password in [&b"public\0"[..], b"\xFF", b"\0"] {
        assert_eq!(login(&server, "user", password), WRONG, "{password:?}");
    }
    assert!(is_superuser(&server, "root", "secret"));
    assert!(!is_superuser(&server, "user", "public"));
    assert!(!is_superuser(&server, "ann", "local"));
    let log = server.log();
    assert!(log.contains("its user cannot log in"), "{log}");
    for secret in ["public", "44edc2d57c", "slat_foo123", "not a hash"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

fn every_algorithm_verifies_passwords<C: Clients>() {
    let clients = C::empty();
    for (index, (options, hash, salt, password)) in ALGORITHMS.iter().enumerate() {
        let name = format!("user-{index}");
        clients.insert(&name, Some(hash), salt, false);
        let server = clients.start(&algorithm_options(options));
        assert_eq!(login(&server, &name, password), ADMITTED, "{options:?}");
        assert_eq!(login(&server, &name, format!("{password}x")), WRONG, "{options:?}");
        assert_eq!(login(&server, "nobody", password), WRONG, "{options:?}");
        let is_weak = ["plain", "md5", "sha"].contains(&options[0].1);
        assert_eq!(server.log().contains("weak password hashes"), is_weak, "{options:?}");
    }
}

fn values_of_clients_are_never_part_of_a_query<C: Clients>() {
    let clients = C::new();
    let mut options = vec![("on_failure", text("allow"))];
    options.extend(clients.query_with_quotes().map(|query| ("query", text(&query))));
    let server = clients.start(&options);
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    let connect_as = |client: &str, name: &str| {
        let connect = Connect::new(V5, client).user(name, "public");
        server.connect().handshake(&connect).code
    };
    for attempt in INJECTIONS {
        assert_eq!(login(&server, attempt, "public"), WRONG, "{attempt}");
        assert_eq!(connect_as(attempt, "nobody"), WRONG, "{attempt}");
        assert_eq!(connect_as(attempt, "user"), ADMITTED, "{attempt}");
        // The text as the name of a user.
        clients.insert(&format!("{attempt}!"), Some(PUBLIC), "slat_foo123", false);
        assert_eq!(login(&server, format!("{attempt}!"), "public"), ADMITTED, "{attempt}");
    }
    assert_eq!(login(&server, "x".repeat(60_000), "public"), WRONG);
    assert_eq!(clients.count(), INJECTIONS.len() + 2);
}

fn changed_rows_take_effect_after_the_lifetime_of_the_answers<C: Clients>() {
    let clients = C::new();
    let long = clients.start(&[("cache_allowed", text("1d")), ("cache_denied", text("1d"))]);
    let short = clients.start(&[("cache_allowed", text("100ms")), ("cache_denied", text("100ms"))]);
    for server in [&long, &short] {
        assert_eq!(login(server, "user", "public"), ADMITTED);
        assert_eq!(login(server, "user", "secret"), WRONG);
    }
    clients.change("user", SECRET);
    short.wait_until("the new password is in use", |server| {
        login(server, "user", "secret") == ADMITTED
    });
    short.wait_until("the old password is not", |server| {
        login(server, "user", "public") == WRONG
    });
    assert_eq!(login(&long, "user", "public"), ADMITTED);
    assert_eq!(login(&long, "user", "secret"), WRONG);
    clients.delete("user");
    short.wait_until("the user is gone", |server| login(server, "user", "secret") == WRONG);
}
