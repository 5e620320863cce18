//! Tests that an import never widens access.

use super::super::term::TermBudget;
use super::super::term::tests::{atom, bytes, table_file, tuple};
use super::*;
use crate::import::hocon::Hocon;

const DENY_ALL: &str = "deny All # $SYS/#\n";
const DATABASE_ONLY: &str = "authorization {no_match = allow, sources = [{type = built_in_database}]}";

/// Returns the access rules and the report of a configuration and a database, with `allow` as default.
fn imported(config: &str, database: Option<&[Vec<Term>]>) -> (String, String) {
    let table = database.map(|records| {
        let file = table_file("emqx_acl", &["who", "rules"], records);
        Table::read("emqx_acl", &file, &mut TermBudget::default()).expect("valid")
    });
    let hocon = Hocon::parse("cluster.hocon", config, &|_| Err(String::new())).expect("valid");
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    let root = Setting::root(&hocon, &report);
    let database = Database {
        rules: table.as_ref(),
        has_namespaces: false,
    };
    Authorization::new(&mut setup, &report, "allow", None).import(&root.get("authorization"), &database);
    root.finish();
    (setup.rules_text(), report.text("title"))
}

fn rule(permission: &str, topic: &str) -> Term {
    tuple(&[atom(permission), atom("all"), bytes(topic)])
}

fn user(name: &str) -> Term {
    tuple(&[Term::Integer(KEY_USER), bytes(name)])
}

#[test]
fn without_sources_nothing_is_allowed() {
    let rules = [vec![Term::Integer(0), Term::List(vec![rule("allow", "x")])]];
    for config in [
        "",
        "authorization {}",
        "authorization {no_match = allow}",
        "authorization = null",
    ] {
        for database in [None, Some(&rules[..])] {
            let (rules, report) = imported(config, database);
            assert_eq!(rules, DENY_ALL, "{config}\n{report}");
            assert!(report.contains("etc/acl.conf"), "{config}\n{report}");
            assert!(
                report.contains("deny, because the rules of etc/acl.conf"),
                "{config}\n{report}"
            );
        }
    }
}

#[test]
fn an_empty_list_of_sources_is_a_decision() {
    let (rules, report) = imported("authorization {no_match = allow, sources = []}", None);
    assert_eq!(rules, "", "{report}");
    let (rules, report) = imported("authorization {no_match = deny, sources = []}", None);
    assert_eq!(rules, DENY_ALL, "{report}");
}

#[test]
fn an_unknown_source_alone_denies_everything() {
    for config in [
        "authorization {no_match = allow, sources = [{type = http}]}",
        "authorization {no_match = allow, sources = [{type = file}]}",
        "authorization {no_match = allow, sources = [{type = file, rules = \"{deny\"}]}",
        "authorization {no_match = allow, sources = [{enable = maybe, type = file, rules = \"{allow, all}.\"}]}",
        "authorization {no_match = {}, sources = []}",
        "authorization {no_match = maybe, sources = []}",
    ] {
        let (rules, report) = imported(config, None);
        assert_eq!(rules, DENY_ALL, "{config}\n{report}");
        assert!(report.contains("deny, because"), "{config}\n{report}");
    }
}

#[test]
fn denials_of_an_unused_database_close() {
    let config =
        "authorization {no_match = allow, sources = [{type = file, rules = \"{allow, all, all, [\\\"a\\\"]}.\"}]}";
    for (permission, is_closed) in [("allow", false), ("deny", true)] {
        let records = [vec![user("alice"), Term::List(vec![rule(permission, "x")])]];
        let (_, report) = imported(config, Some(&records));
        assert!(report.contains("1 row"), "{report}");
        assert_eq!(report.contains("deny, because"), is_closed, "{report}");
    }
}

#[test]
fn rules_of_the_database_apply_to_their_owners() {
    let rules = |permission: &str| Term::List(vec![rule(permission, "x")]);
    let records = [
        vec![Term::Integer(0), rules("allow")],
        vec![user("alice"), rules("deny")],
        vec![tuple(&[Term::Integer(KEY_CLIENT), bytes("c")]), rules("allow")],
    ];
    let (rules, report) = imported(DATABASE_ONLY, Some(&records));
    assert_eq!(rules, "allow clients=c All x\ndeny users=alice All x\nallow All x\n");
    assert!(report.contains("0 changed, 0 not supported"), "{report}");
}

#[test]
fn rules_of_namespaces_close() {
    let hocon = Hocon::parse("cluster.hocon", DATABASE_ONLY, &|_| Err(String::new())).expect("valid");
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    let authorization = Setting::root(&hocon, &report).get("authorization");
    let file = table_file("emqx_acl", &["who", "rules"], &[]);
    let table = Table::read("emqx_acl", &file, &mut TermBudget::default()).expect("valid");
    let database = Database {
        rules: Some(&table),
        has_namespaces: true,
    };
    Authorization::new(&mut setup, &report, "allow", None).import(&authorization, &database);
    assert_eq!(setup.rules_text(), DENY_ALL);
    assert!(
        report
            .text("title")
            .contains("deny, because the access rules of namespaces")
    );
}

#[test]
fn a_database_record_that_cannot_be_read_closes() {
    let allow = || Term::List(vec![rule("allow", "x")]);
    let both = || Term::List(vec![rule("allow", "x"), rule("deny", "y")]);
    for (who, rules) in [
        (atom("all"), both()),
        (Term::Integer(3), both()),
        (bytes("alice"), both()),
        (tuple(&[Term::Integer(3), bytes("alice")]), both()),
        (tuple(&[Term::Integer(KEY_USER)]), both()),
        (tuple(&[Term::Integer(KEY_USER), Term::Bytes(vec![0xFF])]), both()),
        (user("alice"), bytes("allow")),
        (user("alice"), Term::Other),
        (user("alice"), rule("deny", "x")),
    ] {
        let records = [vec![Term::Integer(0), allow()], vec![who.clone(), rules]];
        let (rules, report) = imported(DATABASE_ONLY, Some(&records));
        assert_eq!(rules, DENY_ALL, "{who:?}\n{report}");
        assert!(report.contains("1 unreadable record"), "{who:?}\n{report}");
        assert!(report.contains("deny, because"), "{who:?}\n{report}");
    }
}

#[test]
fn an_unreadable_rule_that_only_allows_is_left_out() {
    let allow = |topic: &str| Term::List(vec![rule("allow", topic)]);
    let too_short = tuple(&[atom("allow"), bytes("y")]);
    let records = [
        vec![Term::Integer(0), Term::List(vec![too_short, rule("allow", "x")])],
        vec![Term::Integer(3), allow("z")],
    ];
    let (rules, report) = imported(DATABASE_ONLY, Some(&records));
    assert_eq!(rules, "allow All x\n", "{report}");
    assert!(report.contains("1 unreadable record"), "{report}");
    assert!(report.contains("2 not supported"), "{report}");
}

#[test]
fn a_denied_topic_that_cannot_be_read_closes() {
    let (outcomes, rules) = outcomes("{allow, all, all, [\"x\", 1]}.\n{deny, all, all, [\"y\", 1]}.\n{allow, all}.");
    assert!(matches!(outcomes[0], Outcome::Changed { .. }), "{outcomes:?}");
    assert!(
        outcomes[1..]
            .iter()
            .all(|one| matches!(one, Outcome::NotSupported { .. })),
        "{outcomes:?}"
    );
    assert_eq!(rules, "allow All x\n");
}

#[test]
fn user_names_match_nothing_without_authentication() {
    let text = "{deny, {user, \"guest\"}, all, [\"x\"]}.\n{deny, all, all, [\"a/${username}/b\"]}.\n\
                {allow, {user, \"guest\"}, all, [\"y\"]}.\n{deny, all, all, [{eq, \"${username}\"}]}.\n\
                {allow, all, all, [\"${username}/z\", \"z\"]}.";
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    setup.set("access.unknown_users", "", "anonymous");
    let mut authorization = Authorization::new(&mut setup, &report, "allow", None);
    for (_, term) in acl_file::parse(text).expect("valid") {
        authorization.add(&term, file_rule(&term));
    }
    let expected = "deny All x\ndeny All a/#\ndeny All eq ${username}\nallow All z\n";
    assert_eq!(setup.rules_text(), expected);
}

#[test]
fn a_reason_from_outside_closes() {
    let text = "authorization {no_match = allow, sources = [{type = file, rules = \"{allow, all}.\"}]}";
    let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    let authorization = Setting::root(&hocon, &report).get("authorization");
    let database = Database {
        rules: None,
        has_namespaces: false,
    };
    let because = Some("of a plugin".to_owned());
    Authorization::new(&mut setup, &report, "allow", because).import(&authorization, &database);
    assert_eq!(setup.rules_text(), DENY_ALL);
    let text = report.text("title");
    assert!(
        text.contains("of a plugin; to allow it, add it to access.rules"),
        "{text}"
    );
    assert!(
        text.contains("deny, because of a plugin; to open access, change access.rules"),
        "{text}"
    );
}

fn outcomes(rules: &str) -> (Vec<Outcome>, String) {
    let mut setup = Setup::new().expect("random bytes");
    let report = Report::default();
    let mut authorization = Authorization::new(&mut setup, &report, "allow", None);
    let terms = acl_file::parse(rules).expect("valid");
    let outcomes = terms
        .iter()
        .map(|(_, term)| authorization.add(term, file_rule(term)))
        .collect();
    let rules = setup.rules_text();
    (outcomes, rules)
}

fn is_imported(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Imported(_))
}

#[test]
fn rules_of_the_file_become_access_rules() {
    let (outcomes, rules) = outcomes(
        "{allow, {'and', [{username, {re, \"^dash$\"}}, {ipaddr, \"10.0.0.0/8\"}]}, subscribe, [\"$SYS/#\"]}.\n\
         {deny, {'or', [{user, \"a\"}, {client, \"c\"}]}, {publish, [{qos, [1, 2]}, {retain, true}]}, [\"x/${clientid}\"]}.\n\
         {deny, all, subscribe, [\"$SYS/#\", {eq, \"#\"}]}.\n{allow, all}.",
    );
    assert!(outcomes.iter().all(is_imported), "{outcomes:?}");
    let expected = "allow users=dash addresses=10.0.0.0/8 Subscribe $SYS/#\n\
                    deny users=a Publish qos=[1, 2] retain=true x/${clientid}\n\
                    deny clients=c Publish qos=[1, 2] retain=true x/${clientid}\n\
                    deny Subscribe $SYS/# eq #\n\
                    allow All # $SYS/#\n";
    assert_eq!(rules, expected);
}

#[test]
fn what_cannot_be_translated_never_widens_access() {
    let (outcomes, rules) = outcomes(
        "{allow, {username, {re, \"^a.*\"}}, all, [\"x\"]}.\n\
         {deny, {username, {re, \"^a.*\"}}, all, [\"y\"]}.\n\
         {deny, all, all, [\"a/b/${client_attrs.x}/c\"]}.\n\
         {deny, all, all, [\"d/%c\"]}.\n\
         {allow, all, all, [\"z/${cert_common_name}\", \"v/%u\", \"w\"]}.",
    );
    assert!(matches!(outcomes[0], Outcome::NotSupported { .. }), "{outcomes:?}");
    assert!(
        outcomes[1..].iter().all(|one| matches!(one, Outcome::Changed { .. })),
        "{outcomes:?}"
    );
    assert_eq!(rules, "deny All y\ndeny All a/b/#\ndeny All d/#\nallow All w\n");
}

#[test]
fn rules_behind_an_unreadable_one_allow_nothing() {
    let (outcomes, rules) = outcomes("{maybe, all}.\n{allow, all}.\n{deny, all, all, [\"x\"]}.");
    assert!(matches!(outcomes[1], Outcome::NotSupported { .. }), "{outcomes:?}");
    assert_eq!(rules, "deny All x\n");
}

const HTTP: &str = "{type = http, method = post, url = \"http://127.0.0.1:1/acl\", \
                    body {topic = \"${topic}\", action = \"${action}\"}, headers {authorization = \"hush-1\"}}";
const POSTGRESQL: &str = "{type = postgresql, server = \"127.0.0.1:5432\", database = mqtt, username = postgres, \
                          password = \"hush-2\", query = \"SELECT permission, action, topic FROM mqtt_acl WHERE \
                          username = ${username}\"}";
const REDIS: &str = "{type = redis, redis_type = single, server = \"127.0.0.1:6379\", password = \"hush-3\", \
                     database = 1, cmd = \"HGETALL mqtt_user:${username}\"}";
const FILE: &str = "{type = file, rules = \"{allow, all, all, [\\\"a\\\"]}.\"}";

/// The settings of PostgreSQL, with the defaults of MySQL for port and user.
fn mysql() -> String {
    POSTGRESQL
        .replace("type = postgresql", "type = mysql")
        .replace(":5432", "")
        .replace("username = postgres", "query_timeout = 3s")
}

/// Imports an authorization, with `allow` as default.
fn imported_setup(config: &str, has_token_names: bool) -> (Setup, String) {
    let hocon = Hocon::parse("cluster.hocon", config, &|_| Err(String::new())).expect("valid");
    let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
    let root = Setting::root(&hocon, &report);
    let database = Database {
        rules: None,
        has_namespaces: false,
    };
    let mut authorization = Authorization::new(&mut setup, &report, "allow", None);
    authorization.has_token_names = has_token_names;
    authorization.import(&root.get("authorization"), &database);
    root.finish();
    let report = report.text("title");
    assert!(!report.contains("hush"), "{report}");
    (setup, report)
}

#[test]
fn sources_keep_their_order() {
    for (sources, expected, rules) in [
        (format!("{FILE}, {HTTP}"), &["rules", "http"][..], "allow All a\n"),
        (format!("{HTTP}, {FILE}"), &["http", "rules"], "allow All a\n"),
        (
            format!("{POSTGRESQL}, {REDIS}, {HTTP}"),
            &["postgresql", "redis", "http"],
            "",
        ),
        (format!("{}, {FILE}", mysql()), &["mysql", "rules"], "allow All a\n"),
        (format!("{FILE}, {FILE}"), &[], "allow All a\nallow All a\n"),
    ] {
        let config = format!("authorization {{no_match = deny, deny_action = disconnect, sources = [{sources}]}}");
        let (setup, report) = imported_setup(&config, false);
        assert_eq!(setup.list("access.sources"), expected, "{report}");
        assert_eq!(setup.rules_text(), rules, "{report}");
        assert_eq!(setup.option("access.deny_action"), Some("disconnect"));
        setup.install(None, "title", &Report::default()).expect("valid");
    }
}

#[test]
fn a_source_in_mysql_has_the_settings_of_emqx() {
    let (setup, report) = imported_setup(&format!("authorization.sources = [{}]", mysql()), false);
    let options = setup.table_text("access.source.mysql");
    for part in [
        "host = \"127.0.0.1\"",
        "port = 3306",
        "user = \"root\"",
        "password = \"hush-2\"",
        "FROM mqtt_acl WHERE username = ${username}",
        "timeout = \"3s\"",
    ] {
        assert!(options.contains(part), "{part}\n{options}\n{report}");
    }
}

#[test]
fn no_source_is_asked_behind_one_that_is_left_out() {
    for (first, part) in [
        (
            "{type = ldap, filter = \"(uid=${username})\"}".to_owned(),
            "no source of access rules of type ldap",
        ),
        (
            HTTP.replace("${topic}", "${peerport}"),
            "unknown placeholder ${peerport}",
        ),
        (
            HTTP.replace("method = post", "precondition = x, method = post"),
            "applies to some clients only",
        ),
        (REDIS.replace("HGETALL", "HMGET"), "its command is not HGETALL"),
        (
            REDIS.replace("database = 1", "compatibility_mode = v4"),
            "compatibility_mode",
        ),
        (POSTGRESQL.replace("${username}", "${topic}"), "${topic}"),
        (
            FILE.replace("type", "precondition = x, type"),
            "applies to some clients only",
        ),
    ] {
        let sources = format!("{first}, {POSTGRESQL}, {FILE}");
        let (setup, report) = imported_setup(
            &format!("authorization {{no_match = allow, sources = [{sources}]}}"),
            false,
        );
        assert!(!setup.has("access.sources"), "{first}\n{report}");
        assert_eq!(setup.rules_text(), DENY_ALL, "{first}\n{report}");
        assert_eq!(setup.option("access.no_match"), Some("deny"));
        assert!(report.contains(part), "{part}\n{report}");
        assert!(report.contains("to ask it, add it to access.sources"), "{report}");
    }
    let (setup, report) = imported_setup(
        &format!("authorization.sources = [{HTTP}, {HTTP}, {POSTGRESQL}]"),
        false,
    );
    assert_eq!(setup.list("access.sources"), ["http"], "{report}");
    assert_eq!(setup.option("access.no_match"), Some("deny"), "{report}");
}

#[test]
fn rules_on_both_sides_of_a_source_allow_nothing_behind_it() {
    let denial = FILE.replace("allow, all", "deny, all");
    let (setup, report) = imported_setup(
        &format!("authorization {{no_match = allow, sources = [{FILE}, {HTTP}, {denial}, {FILE}]}}"),
        false,
    );
    assert_eq!(setup.list("access.sources"), ["rules", "http"], "{report}");
    assert_eq!(setup.rules_text(), "allow All a\ndeny All a\n", "{report}");
    assert_eq!(setup.option("access.no_match"), Some("deny"), "{report}");
}

#[test]
fn a_rule_for_all_other_topics_does_not_decide_before_a_source() {
    let denial = "{type = file, rules = \"{deny, {user, \\\"a\\\"}, all, all}.\"}";
    let config = format!("authorization {{no_match = allow, sources = [{denial}, {HTTP}]}}");
    let (setup, report) = imported_setup(&config, false);
    assert_eq!(setup.list("access.sources"), ["rules", "http"], "{report}");
    let report = Report::default();
    let text = setup.install(None, "title", &report).expect("valid");
    assert!(text.contains("to open topics that no source decides about"), "{text}");
    assert!(!text.contains("the last rule allows"), "{text}");
}

#[test]
fn tokens_as_user_names_match_no_rule() {
    let rules = "{allow, {user, \\\"admin\\\"}, all, all}. {deny, {user, \\\"b\\\"}, all, [\\\"x\\\"]}. {allow, all, all, [\\\"a\\\"]}.";
    let file = format!("{{type = file, rules = \"{rules}\"}}");
    let (setup, report) = imported_setup(&format!("authorization {{no_match = deny, sources = [{file}]}}"), true);
    assert_eq!(setup.rules_text(), "deny All x\nallow All a\n", "{report}");
    let (setup, report) = imported_setup(&format!("authorization {{no_match = allow, sources = [{HTTP}]}}"), true);
    assert!(!setup.has("access.sources"), "{report}");
    assert_eq!(setup.rules_text(), DENY_ALL, "{report}");
}

#[test]
fn cached_decisions_are_those_of_the_service() {
    let sizes = |cache: &str| {
        let config = format!("authorization {{sources = [{HTTP}], cache {{{cache}}}}}");
        let (setup, report) = imported_setup(&config, false);
        let text = setup.table_text("access.source.http");
        (text, report)
    };
    let (options, report) = sizes("enable = true, max_size = 32, ttl = 30s");
    assert!(
        options.contains("cache_size = 32") && options.contains("cache_ttl = \"30s\""),
        "{options}\n{report}"
    );
    for cache in ["enable = false, ttl = 1m", "enable = true, excludes = [\"t/1\"]"] {
        let (options, report) = sizes(cache);
        assert!(options.contains("cache_size = 0"), "{options}\n{report}");
    }
}
