//! Tests of rows: columns, passwords and superusers.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};

use auth::{HashAlgorithm, MacFunction, SaltPosition, TemplateUse};

use super::*;

/// bcrypt of `bcrypt`.
const BCRYPT: &str = "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

fn settings(algorithm: HashAlgorithm) -> HashSettings {
    HashSettings {
        algorithm,
        salt_position: SaltPosition::Suffix,
        mac: MacFunction::Sha256,
        iterations: 1000,
        key_bytes: None,
    }
}

fn credentials(name: Option<&str>, password: Option<&str>) -> Credentials {
    Credentials {
        client_id: "c1".to_owned(),
        user_name: name.map(str::to_owned),
        password: password.map(Password::new),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    }
}

fn row(hash: &str, salt: &str, is_superuser: bool) -> UserRow {
    UserRow {
        password_hash: Some(hash.as_bytes().to_vec()),
        salt: salt.as_bytes().to_vec(),
        is_superuser,
    }
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

fn text(outcome: Result<ProviderOutcome, Overloaded>) -> String {
    match outcome {
        Ok(ProviderOutcome::Allow(login)) if login.is_superuser => "superuser".to_owned(),
        Ok(ProviderOutcome::Allow(login)) => format!("allow by {:?}", login.provider),
        Ok(ProviderOutcome::Deny(reason)) => reason.to_string(),
        Ok(ProviderOutcome::Ignore) => "ignore".to_owned(),
        Err(Overloaded) => "overloaded".to_owned(),
    }
}

#[test]
fn the_row_decides() {
    let check = RowCheck::new("redis", settings(HashAlgorithm::Sha256)).unwrap();
    let hash = "f84fa2149dbb62ed4e0cf1f550d2949b33a6513d3a7707e08502511c79ccb0ee";
    for (row, password, expected) in [
        (
            Some(row(hash, "salt", false)),
            Some("secret"),
            "allow by Some(\"redis\")",
        ),
        (Some(row(hash, "salt", true)), Some("secret"), "superuser"),
        (Some(row(hash, "salt", true)), Some("Secret"), "wrong password"),
        (Some(row(hash, "pepper", true)), Some("secret"), "wrong password"),
        (Some(row("not a hash", "salt", true)), Some("secret"), "wrong password"),
        (Some(row("", "", true)), Some(""), "wrong password"),
        (Some(UserRow::default()), Some("secret"), "rejected by policy"),
        (Some(row(hash, "salt", false)), None, "ignore"),
        (None, Some("secret"), "ignore"),
    ] {
        for _ in 0..2 {
            let outcome = run(check.outcome(&credentials(Some("u"), password), row.clone()));
            assert_eq!(text(outcome), expected);
        }
    }
}

/// Whether the first poll of the future has the outcome.
fn is_immediate(check: &RowCheck, name: &str, password: &str, row: Option<UserRow>) -> bool {
    let credentials = credentials(Some(name), Some(password));
    run(async {
        let mut outcome = std::pin::pin!(check.outcome(&credentials, row));
        let is_immediate = tokio::select! {
            biased;
            _ = &mut outcome => true,
            () = std::future::ready(()) => false,
        };
        if !is_immediate {
            outcome.await.unwrap();
        }
        is_immediate
    })
}

#[test]
fn slow_hashes_run_on_other_threads_and_once_per_password() {
    let check = RowCheck::new("redis", settings(HashAlgorithm::Bcrypt)).unwrap();
    let known = || Some(row(BCRYPT, "", false));
    for (name, password, row) in [("u", "U*U", known()), ("u", "wrong", known()), ("nobody", "U*U", None)] {
        assert!(!is_immediate(&check, name, password, row.clone()), "{name} {password}");
        assert!(is_immediate(&check, name, password, row), "{name} {password}");
    }
    let other = BCRYPT.replace("$05$", "$04$");
    assert!(!is_immediate(&check, "u", "U*U", Some(row(&other, "", false))));
    let check = RowCheck::new("redis", settings(HashAlgorithm::Sha256)).unwrap();
    assert!(is_immediate(
        &check,
        "u",
        "secret",
        Some(row(&"ab".repeat(32), "", false))
    ));
}

#[test]
fn an_unknown_user_costs_as_much_as_the_last_row() {
    let check = RowCheck::new("redis", settings(HashAlgorithm::Bcrypt)).unwrap();
    let cost_of_decoy = || format!("{:?}", check.decoy.lock().unwrap());
    assert!(cost_of_decoy().contains("cost: 10"));
    run(check.outcome(&credentials(Some("u"), Some("x")), Some(row(BCRYPT, "", false)))).unwrap();
    assert!(cost_of_decoy().contains("cost: 5"));
    let decoy = check.decoy.lock().unwrap().clone();
    run(check.outcome(&credentials(Some("u"), Some("y")), Some(row(BCRYPT, "", false)))).unwrap();
    assert!(Arc::ptr_eq(&decoy, &check.decoy.lock().unwrap()));
}

#[test]
fn a_question_needs_all_values_and_a_password() {
    let parameters = Parameters::parse(TemplateUse::Login, "query", &["${username}", "${clientid}"]).unwrap();
    assert!(parameters.question("redis", &credentials(Some("u"), None)).is_none());
    assert!(parameters.question("redis", &credentials(None, Some("p"))).is_none());
    let key = |name, password| {
        parameters
            .question("redis", &credentials(Some(name), Some(password)))
            .unwrap()
    };
    assert!(key("u", "p") == key("u", "p"));
    assert!(key("u", "p") != key("u", "q"));
    assert!(key("u", "p") != key("v", "p"));
    let by_id = Parameters::parse(TemplateUse::Login, "query", &["${clientid}"]).unwrap();
    assert!(by_id.question("redis", &credentials(None, Some("p"))).is_some());
    let error = Parameters::parse(TemplateUse::Login, "query", &["${user}"])
        .map(drop)
        .unwrap_err();
    assert!(error.starts_with("query: ") && error.contains("${username}"), "{error}");
}
