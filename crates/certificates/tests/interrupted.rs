//! Full disks and ends of the process between the steps: an authority limits accounts, orders and certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use certificates::acme::AcmeConfig;
use serde_json::{Value, json};

use crate::acme::account_file;
use crate::pebble::{Client, Pebble};
use crate::support::{Directory, until};

/// Blocks a file: its temporary file cannot be created. Permissions would not stop the user root.
struct Blocked(PathBuf);

impl Blocked {
    fn new(file: &Path) -> Blocked {
        let mut temporary = file.as_os_str().to_owned();
        temporary.push(".new");
        let blocked = PathBuf::from(temporary);
        fs::create_dir_all(&blocked).unwrap();
        Blocked(blocked)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

fn config(pebble: &Pebble, files: &Path, domain: &str) -> AcmeConfig {
    let mut config = pebble.config(files, &[domain]);
    config.external_account = None;
    config
}

/// Runs a client until it has failed several times because of a file, and returns it.
fn failing(config: &AcmeConfig, file: &Path) -> Client {
    let client = Client::start(config.clone());
    client.error(&format!("cannot write {}", file.display()));
    until("further attempts", || (client.status.get().failures >= 3).then_some(()));
    client
}

fn credentials(account: &Path) -> (Option<String>, String) {
    let file: Value = serde_json::from_slice(&fs::read(account).unwrap()).unwrap();
    let text = |name: &str| file["credentials"][name].as_str().map(str::to_owned);
    (text("id"), text("key_pkcs8").unwrap())
}

#[test]
fn full_disk_uses_one_account_and_one_certificate() {
    const DOMAIN: &str = "stored.example";
    let (pebble, directory) = (Pebble::start(&[]), Directory::new());
    let _port = pebble.http();
    let files = directory.path().join("acme");
    let config = config(&pebble, &files, DOMAIN);

    // The key is stored before the authority is asked.
    pebble.stop();
    let client = Client::start(config.clone());
    client.error("cannot connect");
    drop(client);
    let account = account_file(&files);
    let (id, key) = credentials(&account);
    assert_eq!(id, None);
    pebble.start_again();

    // No file can be written.
    let aside = directory.path().join("aside");
    fs::rename(&files, &aside).unwrap();
    fs::write(&files, "a file").unwrap();
    let client = Client::start(config.clone());
    client.error("cannot create");
    drop(client);
    fs::remove_file(&files).unwrap();

    // The key of the account cannot be written.
    let blocked = Blocked::new(&account);
    drop(failing(&config, &account));
    drop(blocked);
    assert_eq!((pebble.accounts(), pebble.orders()), (0, 0));
    fs::remove_dir_all(&files).unwrap();
    fs::rename(&aside, &files).unwrap();

    // The key of the certificate cannot be written. The account has the stored key.
    let order = files.join("order.json");
    let blocked = Blocked::new(&order);
    drop(failing(&config, &order));
    drop(blocked);
    assert_eq!((pebble.accounts(), pebble.orders()), (1, 0));
    let (id, same_key) = credentials(&account);
    assert!(id.is_some() && same_key == key);

    // The certificate cannot be written, also not after a restart.
    let certificate = files.join("certificate.pem");
    let blocked = Blocked::new(&certificate);
    drop(failing(&config, &certificate));
    let client = failing(&config, &certificate);
    assert_eq!((pebble.orders(), pebble.certificates()), (1, 1));
    drop(blocked);
    until("a certificate", || client.issued.lock().unwrap().first().cloned());
    assert_eq!(client.status.get().last_error, None);
    assert_eq!((pebble.orders(), pebble.certificates()), (1, 1));
    assert!(!order.exists() && !files.join("attempt.json").exists());
    drop(client);

    // The process ended after the authority had created the account.
    let mut file: Value = serde_json::from_slice(&fs::read(&account).unwrap()).unwrap();
    file["credentials"].as_object_mut().unwrap().remove("id");
    fs::write(&account, file.to_string()).unwrap();
    fs::remove_file(&certificate).unwrap();
    let client = Client::start(config);
    client.issued(1);
    assert_eq!((credentials(&account), pebble.accounts()), ((id, key), 1));
}

/// An authority that has moved or forgotten an order may have any answer to its URL.
#[test]
fn order_that_cannot_be_continued_is_replaced() {
    let (pebble, directory) = (Pebble::start(&[]), Directory::new());
    let _port = pebble.http();
    let config = config(&pebble, directory.path(), "moved.example");
    let (order, certificate) = (
        directory.path().join("order.json"),
        directory.path().join("certificate.pem"),
    );
    let client = Client::start(config.clone());
    client.issued(1);
    drop(client);
    let stored = fs::read_to_string(&certificate).unwrap();
    fs::remove_file(&certificate).unwrap();
    let unreachable = json!({
        "directory": config.directory,
        "domains": config.domains,
        "key_pem": stored,
        "url": "https://127.0.0.1:1/order",
    });
    fs::write(&order, unreachable.to_string()).unwrap();
    let client = Client::start(config);
    client.error("order of the last attempt");
    until("a certificate", || client.issued.lock().unwrap().first().cloned());
    assert_eq!(client.status.get().last_error, None);
    assert_eq!((pebble.accounts(), pebble.orders()), (1, 2));
    assert!(!order.exists());
}

#[test]
fn process_that_ends_in_an_order_obtains_one_certificate() {
    const ENDS: u32 = 3;
    let (pebble, directory) = (Pebble::start(&[]), Directory::new());
    let _port = pebble.http();
    for number in 0..ENDS {
        let files = directory.path().join(number.to_string());
        let config = config(&pebble, &files, &format!("end{number}.example"));
        let order = files.join("order.json");
        let client = Client::start(config.clone());
        until("an order", || {
            let text = fs::read_to_string(&order).unwrap_or_default();
            // An order may end at once.
            (text.contains("\"url\"") || files.join("certificate.pem").exists()).then_some(())
        });
        std::thread::sleep(Duration::from_millis(300) * number);
        drop(client);
        let _client = Client::start(config);
        until("a certificate", || files.join("certificate.pem").exists().then_some(()));
        until("the end of the order", || (!order.exists()).then_some(()));
        assert_eq!(pebble.certificates(), number as usize + 1);
    }
}
