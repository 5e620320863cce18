//! Directories that fail, are slow or change. A directory that never answers is tested in `database_logins::faults`.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::database_logins::faults::{Proxy, check_restart};
use crate::database_logins::reconnects::{Crowd, reconnect_at_once};

const UNCACHED: [(&str, &str); 2] = [("cache_allowed", "'0s'"), ("cache_denied", "'0s'")];

#[test]
fn a_directory_that_was_killed_is_used_again() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let server = directory.start(&UNCACHED);
    check_restart(&directory.server, &server, "meter", "secret");
}

#[test]
fn another_server_is_used_while_the_first_is_down() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let first = format!("ldap://{}", free_port());
    let server = Server::start(&Config::new(options(&[first, directory.url()], &[])));
    assert_eq!(login(&server, "meter", "secret"), ADMITTED);
    assert_eq!(login(&server, "meter", "guess"), WRONG);
}

#[test]
fn a_changed_password_takes_effect_after_the_lifetime_of_the_answers() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let long = directory.start(&[("cache_allowed", "'1d'"), ("cache_denied", "'1d'")]);
    let short = directory.start(&[("cache_allowed", "'100ms'"), ("cache_denied", "'100ms'")]);
    for server in [&long, &short] {
        assert_eq!(login(server, "meter", "secret"), ADMITTED);
        assert_eq!(login(server, "meter", "changed"), WRONG);
    }
    directory.change(
        "dn: uid=meter,ou=devices,dc=example,dc=org\nchangetype: modify\nreplace: userPassword\n\
         userPassword: changed\n",
    );
    short.wait_until("the new password is in use", |server| {
        login(server, "meter", "changed") == ADMITTED
    });
    short.wait_until("the old password is not", |server| {
        login(server, "meter", "secret") == WRONG
    });
    assert_eq!(login(&long, "meter", "secret"), ADMITTED);
    assert_eq!(login(&long, "meter", "changed"), WRONG);
}

#[test]
fn a_changed_password_of_the_account_is_noticed() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let server = directory.start(&UNCACHED);
    assert_eq!(login(&server, "meter", "secret"), ADMITTED);
    directory
        .change("dn: cn=mqtt,dc=example,dc=org\nchangetype: modify\nreplace: userPassword\nuserPassword: rotated\n");
    // Existing connections do not need the password, so they are ended.
    for verb in ["kill", "start"] {
        let output = directory.server.call(verb, &[]).expect("the script runs");
        assert!(output.status.success(), "{output:?}");
    }
    for _ in 0..3 {
        assert_eq!(login(&server, "meter", "secret"), UNAVAILABLE);
    }
    let server = directory.start(&[&UNCACHED[..], &[("password", "'rotated'")]].concat());
    assert_eq!(login(&server, "meter", "secret"), ADMITTED);
}

#[test]
fn a_deleted_entry_is_unknown() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let server = directory.start(&UNCACHED);
    assert_eq!(login(&server, "meter", "secret"), ADMITTED);
    directory.change("dn: uid=meter,ou=devices,dc=example,dc=org\nchangetype: delete\n");
    assert_eq!(login(&server, "meter", "secret"), WRONG);
}

#[test]
fn a_filter_can_exclude_expired_entries() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let filter = ("filter", "'(&(uid=${username})(!(employeeType=expired)))'");
    let server = directory.start(&[&UNCACHED[..], &[filter]].concat());
    assert_eq!(login(&server, "meter", "secret"), ADMITTED);
    directory.change(
        "dn: uid=meter,ou=devices,dc=example,dc=org\nchangetype: modify\nadd: employeeType\nemployeeType: expired\n",
    );
    assert_eq!(login(&server, "meter", "secret"), WRONG);
}

#[test]
fn a_directory_that_hangs_rejects_clients_until_it_answers() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    let proxy = Proxy::new(directory.server.address.clone());
    let url = format!("ldap://{}", proxy.address);
    let server = Server::start(&Config::new(options(
        &[url],
        &[&UNCACHED[..], &[("timeout", "'1s'")]].concat(),
    )));
    server.wait_until("the directory answers in time", |server| {
        login(server, "meter", "secret") == ADMITTED
    });
    proxy.pause(true);
    for _ in 0..2 {
        assert_eq!(login(&server, "meter", "secret"), UNAVAILABLE);
        assert_eq!(login(&server, "ann", "local"), UNAVAILABLE);
    }
    proxy.pause(false);
    server.wait_until("the directory answers again", |server| {
        login(server, "meter", "secret") == ADMITTED
    });
}

#[test]
fn clients_that_reconnect_at_once_are_all_admitted() {
    let directory = Directory::new();
    let crowd = Crowd::of_users(200);
    let mut entries = String::new();
    for number in 1..=crowd.users {
        write!(
            entries,
            "dn: uid=meter-{number},ou=devices,dc=example,dc=org\nchangetype: add\nobjectClass: inetOrgPerson\n\
             uid: meter-{number}\ncn: device\nsn: device\nuserPassword: {SECRET}\n\n"
        )
        .expect("a string grows");
    }
    directory.change(&entries);
    let config = Config::new(options(&[directory.url()], &[("timeout", "'1m'")]));
    reconnect_at_once(config, &crowd, |_| "secret".to_owned());
}

#[test]
fn a_slow_directory_ends_at_the_time_limit() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("ldap://{}", silent.local_addr().expect("an address"));
    let server = Server::start(&Config::new(options(&[url], &[("timeout", "'200ms'")])));
    for _ in 0..3 {
        assert_eq!(login(&server, "meter", "secret"), UNAVAILABLE);
    }
    assert!(server.log().contains("within"), "{}", server.log());
}

/// Reads a request, and answers it with these bytes.
fn answer(mut connection: TcpStream, bytes: &[u8]) {
    let mut request = [0; 4096];
    let _ = connection.read(&mut request);
    let _ = connection.write_all(bytes);
}

#[test]
fn answers_that_are_not_understood_admit_no_client() {
    for (bytes, reason) in [
        (&b""[..], "the server has closed the connection"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "a message begins with another type",
        ),
        (b"\x30\x84\x7f\xff\xff\xff", "longer than 1 MiB"),
        (b"\x30\x80", "unsupported form"),
        (b"\x30\x00", "ends early"),
        // Results of another request, and of another kind of request.
        (
            b"\x30\x0c\x02\x01\x07\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            "message ID 7 instead of 1",
        ),
        (
            b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00",
            "another kind of request",
        ),
        (b"\x30\x05\x02\x01\x01\x61\x00", "ends early"),
        // A notification that the server shuts down.
        (
            b"\x30\x0c\x02\x01\x00\x78\x07\x0a\x01\x34\x04\x00\x04\x00",
            "unavailable (52)",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("ldap://{}", listener.local_addr().expect("an address"));
        let name = ("user_dn", "'uid=${username},dc=example,dc=org'");
        let server = Server::start(&Config::new(options(&[url], &[name])));
        let thread = std::thread::spawn(move || {
            let (connection, _) = listener.accept().expect("the server connects");
            answer(connection, bytes);
        });
        assert_eq!(login(&server, "meter", "secret"), UNAVAILABLE, "{bytes:x?}");
        thread.join().expect("it does not panic");
        assert!(server.log().contains(reason), "{bytes:x?}: {}", server.log());
        assert!(server.is_running() && !server.log().contains("panicked"), "{bytes:x?}");
    }
}

#[test]
fn data_in_front_of_starttls_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("ldap://{}", listener.local_addr().expect("an address"));
    let server = Server::start(&Config::new(options(
        &[url],
        &[("starttls", "true"), ("verify", "false")],
    )));
    let thread = std::thread::spawn(move || {
        let (connection, _) = listener.accept().expect("the server connects");
        // Success, and the answer to a bind that was not sent yet.
        let success = b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00";
        let forged = b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
        answer(connection, &[&success[..], forged].concat());
    });
    assert_eq!(login(&server, "meter", "secret"), UNAVAILABLE);
    thread.join().expect("it does not panic");
    let log = server.log();
    assert!(log.contains("unencrypted data follows the answer to StartTLS"), "{log}");
}
