//! Firmware and software updates (OTA packages).
//!
//! Users upload packages over REST. The server announces them to devices as attributes. Devices fetch them in chunks
//! over MQTT or HTTP. The audit log records the changes.

use platform::ids::Uuid;
use platform::model::{Device, OtaPackage, OtaPackageType};
use serde_json::{Value as Json, json};

use super::http::request;
use super::rest::Rest;
use super::world::{NOW, login, while_stopped};
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
pub const FIRMWARE: &str = "the firmware of a meter, 34 bytes.";
/// SHA-256 of `FIRMWARE`.
const CHECKSUM: &str = "4fdfc3073284702b8b25dad83caa14a9c303ab965caf1e3cb90cc2825faf19a1";

const FILE_HEAD: &str = "--b0undary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"meter; new.bin\"\r\nContent-Type: application/octet-stream\r\n\r\n";
const FILE_END: &str = "\r\n--b0undary--\r\n";

fn create(rest: &Rest, profile: &Json, kind: &str, version: &str) -> Json {
    let package = json!({"title": "meter", "version": version, "type": kind, "deviceProfileId": profile});
    rest.ok("POST", "/api/otaPackage", &package)
}

fn id_of(entity: &Json) -> &str {
    entity["id"]["id"].as_str().expect("an identifier")
}

fn upload(rest: &Rest, package: &Json, query: &str, bytes: &str) -> (u16, Json) {
    let path = format!("/api/otaPackage/{}?{query}", id_of(package));
    let body = format!("{FILE_HEAD}{bytes}{FILE_END}");
    let (status, answer) = rest.form(&path, "b0undary", &body);
    (status, serde_json::from_str(&answer).unwrap_or(Json::Null))
}

/// Creates firmware version 1.0 and uploads its bytes.
pub fn uploaded_firmware(rest: &Rest, profile: &Json) -> Json {
    let package = create(rest, profile, "FIRMWARE", "1.0");
    let (status, uploaded) = upload(rest, &package, "checksumAlgorithm=SHA256", FIRMWARE);
    assert_eq!(status, 200, "{uploaded}");
    uploaded
}

fn expect(peer: &mut Peer, topic: &str) -> Vec<u8> {
    loop {
        let message = peer.expect_publish();
        if message.topic == topic.as_bytes() {
            return message.payload;
        }
    }
}

/// The chunk size and the package are fixed by the first chunk of a request.
#[test]
fn download_keeps_its_chunk_size_and_package() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let id = rest.device("Meter", "TOKEN");
    let path = format!("/api/device/{id}");
    let mut device = rest.ok("GET", &path, &Json::Null);
    let profile = device["deviceProfileId"].clone();
    let next = create(&rest, &profile, "FIRMWARE", "2.0");
    assert_eq!(upload(&rest, &next, "checksumAlgorithm=SHA256", &"2".repeat(30)).0, 200);
    device["firmwareId"] = uploaded_firmware(&rest, &profile)["id"].clone();
    rest.ok("POST", "/api/device", &device);
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe("v2/fw/response/+/chunk/+", 0);
    let mut fetch = |request: u32, chunk: u32, size: &str| {
        peer.publish(&Publish::new(format!("v2/fw/request/{request}/chunk/{chunk}"), size).qos(1));
        let bytes = expect(&mut peer, &format!("v2/fw/response/{request}/chunk/{chunk}"));
        String::from_utf8(bytes).expect("text")
    };
    assert_eq!(fetch(1, 0, "10"), FIRMWARE[..10]);
    let mut device = rest.ok("GET", &path, &Json::Null);
    device["firmwareId"] = next["id"].clone();
    rest.ok("POST", "/api/device", &device);
    assert_eq!(fetch(1, 1, ""), FIRMWARE[10..20]);
    assert_eq!(fetch(1, 2, "8"), FIRMWARE[16..24]);
    assert_eq!(fetch(1, 3, ""), FIRMWARE[24..32]);
    // Requesting the first chunk again restarts the download. So does another request number.
    assert_eq!(fetch(1, 0, ""), "22222222");
    assert_eq!(fetch(2, 0, ""), "2".repeat(30));
}

#[test]
fn profile_firmware_is_announced_to_its_devices() {
    let mut server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "TOKEN");
    let profile = rest.ok("GET", &format!("/api/device/{device}"), &Json::Null)["deviceProfileId"].clone();
    let mut peer = server.session(&login(V4, "TOKEN"));
    for filter in [
        "v1/devices/me/attributes",
        "v2/fw/response/+/chunk/+",
        "v2/sw/response/+/chunk/+",
        "v2/fw/error",
        "v2/sw/error",
    ] {
        peer.subscribe(filter, 0);
    }
    peer.publish(&Publish::new("v2/fw/request/1/chunk/0", "10").qos(1));
    assert_eq!(expect(&mut peer, "v2/fw/error"), b"NOT_FOUND");

    let package = create(&rest, &profile, "FIRMWARE", "1.0");
    assert_eq!(
        (&package["tag"], &package["hasData"]),
        (&json!("meter 1.0"), &json!(false))
    );
    let (status, answer) = rest.call(
        "POST",
        "/api/otaPackage",
        &json!({"title": "meter", "version": "1.0", "type": "FIRMWARE"}),
    );
    assert_eq!(status, 400, "{answer}");
    let mut wanted = rest.ok(
        "GET",
        &format!("/api/deviceProfile/{}", profile["id"].as_str().expect("an id")),
        &Json::Null,
    );
    wanted["firmwareId"] = package["id"].clone();
    let (status, answer) = rest.call("POST", "/api/deviceProfile", &wanted);
    assert_eq!(
        (status, &answer["message"]),
        (400, &json!("Can't assign firmware with empty data!"))
    );
    let sha = "checksumAlgorithm=SHA256";
    assert_eq!(upload(&rest, &package, &format!("{sha}&checksum=00"), FIRMWARE).0, 400);
    assert_eq!(upload(&rest, &package, "checksumAlgorithm=CRC99", FIRMWARE).0, 400);
    assert_eq!(upload(&rest, &package, sha, "").0, 400);
    assert_eq!(
        rest.raw("POST", &format!("/api/otaPackage/{}?{sha}", id_of(&package)), "{}")
            .0,
        400
    );
    let (status, uploaded) = upload(&rest, &package, &format!("{sha}&checksum={CHECKSUM}"), FIRMWARE);
    assert_eq!(status, 200, "{uploaded}");
    assert_eq!(
        (&uploaded["dataSize"], &uploaded["checksum"], &uploaded["fileName"]),
        (&json!(34), &json!(CHECKSUM), &json!("meter; new.bin"))
    );
    assert_eq!(
        upload(&rest, &package, sha, FIRMWARE).0,
        400,
        "the package already has data"
    );

    // The server announces the firmware to the devices of the profile.
    wanted["version"] = Json::Null;
    rest.ok("POST", "/api/deviceProfile", &wanted);
    let attributes: Json = serde_json::from_slice(&expect(&mut peer, "v1/devices/me/attributes")).expect("JSON");
    let expected = json!({"fw_title": "meter", "fw_version": "1.0", "fw_tag": "meter 1.0", "fw_size": 34, "fw_checksum": CHECKSUM, "fw_checksum_algorithm": "SHA256"});
    assert_eq!(attributes, expected);
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries");
    rest.wait_for(&server, &path, |latest| {
        latest["fw_state"][0]["value"] == "INITIATED" && latest["target_fw_version"][0]["value"] == "1.0"
    });

    // Devices fetch it in chunks over MQTT and HTTP, also after a kill.
    for round in 0..2 {
        for (chunk, bytes) in [(0, &FIRMWARE[..20]), (1, &FIRMWARE[20..]), (2, "")] {
            peer.publish(&Publish::new(format!("v2/fw/request/7/chunk/{chunk}"), "20").qos(1));
            assert_eq!(
                expect(&mut peer, &format!("v2/fw/response/7/chunk/{chunk}")),
                bytes.as_bytes()
            );
        }
        peer.publish(&Publish::new("v2/fw/request/8/chunk/0", "").qos(1));
        assert_eq!(expect(&mut peer, "v2/fw/response/8/chunk/0"), FIRMWARE.as_bytes());
        peer.publish(&Publish::new("v2/fw/request/9/chunk/0", "many").qos(1));
        assert!(String::from_utf8_lossy(&expect(&mut peer, "v2/fw/error")).contains("expected 1 to"));
        let http = |query: &str| request(server.http(), "GET", &format!("/api/v1/TOKEN/{query}"), "", "");
        assert_eq!(http("firmware?title=meter&version=1.0"), (200, FIRMWARE.to_owned()));
        assert_eq!(
            http("firmware?title=meter&version=1.0&size=20&chunk=1"),
            (200, FIRMWARE[20..].to_owned())
        );
        assert_eq!(http("firmware?title=meter&version=2.0").0, 404);
        assert_eq!(http("software?title=meter&version=1.0").0, 404);
        assert_eq!(
            request(
                server.http(),
                "GET",
                "/api/v1/UNKNOWN/firmware?title=meter&version=1.0",
                "",
                ""
            )
            .0,
            401
        );
        if round == 0 {
            server.kill();
            server.spawn_again();
            server.wait_until_ready();
            peer = server.session(&login(V5, "TOKEN"));
            for filter in [
                "v2/fw/response/+/chunk/+",
                "v2/fw/error",
                "v1/devices/me/attributes",
                "v2/sw/response/+/chunk/+",
            ] {
                peer.subscribe(filter, 0);
            }
        }
    }
    let rest = Rest::login(&server);
    let download = format!("/api/otaPackage/{}/download", id_of(&package));
    assert_eq!(rest.raw("GET", &download, ""), (200, FIRMWARE.to_owned()));

    // Assign software to the device. An assigned package cannot be deleted. Unassigning it deletes its attributes.
    let software = create(&rest, &profile, "SOFTWARE", "3");
    assert_eq!(upload(&rest, &software, "checksumAlgorithm=CRC32", "app").0, 200);
    let mut own = rest.ok("GET", &format!("/api/device/{device}"), &Json::Null);
    own["firmwareId"] = software["id"].clone();
    let (status, answer) = rest.call("POST", "/api/device", &own);
    assert_eq!(
        (status, &answer["message"]),
        (400, &json!("Can't assign firmware with type: SOFTWARE"))
    );
    (own["firmwareId"], own["softwareId"]) = (Json::Null, software["id"].clone());
    let saved = rest.ok("POST", "/api/device", &own);
    let attributes: Json = serde_json::from_slice(&expect(&mut peer, "v1/devices/me/attributes")).expect("JSON");
    assert_eq!(attributes["sw_version"], "3");
    peer.publish(&Publish::new("v2/sw/request/1/chunk/0", "100").qos(1));
    assert_eq!(expect(&mut peer, "v2/sw/response/1/chunk/0"), b"app");
    let gone = format!("/api/otaPackage/{}", id_of(&software));
    assert_eq!(rest.call("DELETE", &gone, &Json::Null).0, 400);
    own = saved;
    own["softwareId"] = Json::Null;
    rest.ok("POST", "/api/device", &own);
    let attributes: Json = serde_json::from_slice(&expect(&mut peer, "v1/devices/me/attributes")).expect("JSON");
    assert!(
        attributes["deleted"]
            .as_array()
            .is_some_and(|keys| keys.contains(&json!("sw_version"))),
        "{attributes}"
    );
    assert_eq!(rest.raw("DELETE", &gone, "").0, 200);
    assert_eq!(rest.call("GET", &gone, &Json::Null).0, 404);

    // Package lists and access rights.
    let list = rest.ok("GET", "/api/otaPackages?pageSize=10&page=0", &Json::Null);
    assert_eq!(
        (&list["totalElements"], &list["data"][0]["title"]),
        (&json!(1), &json!("meter"))
    );
    let of_profile = format!(
        "/api/otaPackages/{}/FIRMWARE?pageSize=10&page=0",
        profile["id"].as_str().expect("an id")
    );
    assert_eq!(
        rest.ok("GET", &of_profile, &Json::Null)["data"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let customer = Rest::login_as(&server, "customer");
    assert_eq!(
        customer
            .call(
                "POST",
                "/api/otaPackage",
                &json!({"title": "a", "version": "b", "type": "FIRMWARE"})
            )
            .0,
        403
    );
    assert_eq!(customer.raw("GET", &download, "").0, 403);
    assert_eq!(
        Rest::login_as(&server, "sysadmin")
            .call("GET", "/api/otaPackages?pageSize=1&page=0", &Json::Null)
            .0,
        403
    );

    check_audit_log(&server, &rest, &customer, &device, id_of(&software));
}

fn check_audit_log(_: &Server, rest: &Rest, customer: &Rest, device: &str, software: &str) {
    let path = format!(
        "/api/audit/logs/entity/OTA_PACKAGE/{software}?pageSize=10&page=0&sortProperty=createdTime&sortOrder=ASC"
    );
    let logs = rest.ok("GET", &path, &Json::Null);
    let of = |log: &Json| {
        format!(
            "{} {}",
            log["actionType"].as_str().unwrap_or(""),
            log["actionStatus"].as_str().unwrap_or("")
        )
    };
    let all: Vec<String> = logs["data"].as_array().into_iter().flatten().map(of).collect();
    assert_eq!(
        all,
        ["ADDED SUCCESS", "UPDATED SUCCESS", "DELETED FAILURE", "DELETED SUCCESS"]
    );
    let first = &logs["data"][0];
    assert_eq!(
        (&first["userName"], &first["entityName"]),
        (&json!("tenant@thingsboard.org"), &json!("meter"))
    );
    assert_eq!(
        logs["data"][2]["actionFailureDetails"],
        "The otaPackage referenced by the devices cannot be deleted!"
    );
    assert_eq!(first["entityId"], json!({"entityType": "OTA_PACKAGE", "id": software}));
    let failed = "/api/audit/logs?pageSize=100&page=0&actionTypes=ADDED,DELETED&textSearch=meter";
    let found = rest.ok("GET", failed, &Json::Null);
    let is_wanted = |log: &Json| log["actionType"] == "ADDED" || log["actionType"] == "DELETED";
    assert!(
        found["data"]
            .as_array()
            .is_some_and(|all| all.len() >= 4 && all.iter().all(is_wanted)),
        "{found}"
    );
    let none = "/api/audit/logs?pageSize=100&page=0&startTime=0&endTime=1";
    assert_eq!(rest.ok("GET", none, &Json::Null)["totalElements"], 0);
    let user = first["userId"]["id"].as_str().expect("a user");
    let of_user = rest.ok(
        "GET",
        &format!("/api/audit/logs/user/{user}?pageSize=100&page=0"),
        &Json::Null,
    );
    let times: Vec<i64> = of_user["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|log| log["createdTime"].as_i64())
        .collect();
    assert!(
        times.len() > 5 && times.is_sorted_by(|a, b| a >= b),
        "the newest entry is first: {times:?}"
    );
    // Attribute updates and calls are recorded, telemetry is not.
    let at = format!("/api/plugins/telemetry/DEVICE/{device}");
    rest.ok("POST", &format!("{at}/attributes/SERVER_SCOPE"), &json!({"a": 1}));
    rest.ok("POST", &format!("{at}/timeseries/ANY"), &json!({"a": 1}));
    let (status, _) = rest.call(
        "POST",
        &format!("/api/rpc/oneway/{device}"),
        &json!({"method": "x", "params": {}, "persistent": true}),
    );
    assert_eq!(status, 200);
    let newest = rest.ok(
        "GET",
        &format!("/api/audit/logs/entity/DEVICE/{device}?pageSize=2&page=0"),
        &Json::Null,
    );
    assert_eq!(
        [0, 1].map(|at| newest["data"][at]["actionType"].clone()),
        ["RPC_CALL", "ATTRIBUTES_UPDATED"]
    );
    // Only tenant administrators may read the audit log.
    assert_eq!(customer.call("GET", none, &Json::Null).0, 403);
}

fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = server.http_get("/metrics");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name}"))
}

/// Waits until the server stops sending because the device does not read.
fn wait_until_sending_stops(server: &Server) {
    let mut same = (0, 0);
    server.wait_until("all chunk requests are processed", |server| {
        let sent = metric(server, "tidewire_platform_downlinks_sent_total");
        same = if sent == same.0 { (sent, same.1 + 1) } else { (sent, 0) };
        same.1 > 40 && metric(server, "tidewire_platform_lag_messages") == 0
    });
}

/// A device that requests many large chunks and reads them late receives all of them. If it disconnects, the remaining
/// chunks are dropped and counted.
#[test]
fn slow_device_receives_all_requested_chunks() {
    const CHUNK: usize = 3 << 20;
    const ASKED: usize = 24;
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "TOKEN");
    let mut saved = rest.ok("GET", &format!("/api/device/{device}"), &Json::Null);
    let package = create(&rest, &saved["deviceProfileId"], "FIRMWARE", "2.0");
    let bytes: String = (0..2 * CHUNK).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    assert_eq!(upload(&rest, &package, "checksumAlgorithm=CRC32", &bytes).0, 200);
    saved["firmwareId"] = package["id"].clone();
    rest.ok("POST", "/api/device", &saved);
    for qos in [0, 1] {
        let mut peer = server.session(&login(V4, "TOKEN"));
        peer.subscribe("v2/fw/response/+/chunk/+", qos);
        for request in 0..ASKED {
            let topic = format!("v2/fw/request/{request}/chunk/{}", request % 2);
            peer.send(&Publish::new(topic, CHUNK.to_string()).bytes(V4));
        }
        wait_until_sending_stops(&server);
        for request in 0..ASKED {
            let chunk = request % 2;
            let found = peer.receive();
            let topic = format!("v2/fw/response/{request}/chunk/{chunk}");
            assert_eq!(String::from_utf8_lossy(&found.topic), topic, "QoS {qos}");
            assert!(
                found.payload == bytes.as_bytes()[chunk * CHUNK..(chunk + 1) * CHUNK],
                "{topic}"
            );
        }
        peer.disconnect();
    }
    let sent = metric(&server, "tidewire_platform_downlinks_sent_total");
    let dropped = metric(&server, "tidewire_platform_downlinks_dropped_total");
    assert_eq!(dropped, 0);
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe("v2/fw/response/+/chunk/+", 0);
    for request in 0..ASKED {
        let asked = Publish::new(format!("v2/fw/request/{request}/chunk/0"), CHUNK.to_string());
        peer.send(&asked.bytes(V4));
    }
    wait_until_sending_stops(&server);
    peer.abort();
    server.wait_until("each chunk is counted as sent or dropped", |server| {
        let now_sent = metric(server, "tidewire_platform_downlinks_sent_total") - sent;
        let now_dropped = metric(server, "tidewire_platform_downlinks_dropped_total");
        now_dropped > 0 && now_sent + now_dropped == ASKED as u64
    });
}

/// Returns the server's peak memory in KiB.
fn peak_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the process is running");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.trim().parse().ok()).expect("a number")
}

#[test]
fn large_package_is_streamed_in_pieces() {
    const BYTES: usize = (64 << 20) + 12_345;
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "TOKEN");
    let mut saved = rest.ok("GET", &format!("/api/device/{device}"), &Json::Null);
    let package = create(&rest, &saved["deviceProfileId"], "FIRMWARE", "2.0");
    let before = peak_kib(&server);
    let bytes: String = (0..BYTES).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    let (status, uploaded) = upload(&rest, &package, "checksumAlgorithm=CRC32", &bytes);
    assert_eq!((status, &uploaded["dataSize"]), (200, &json!(BYTES)), "{uploaded}");
    let path = format!("/api/otaPackage/{}/download", id_of(&package));
    let (status, downloaded) = rest.raw("GET", &path, "");
    assert!(
        status == 200 && downloaded == bytes,
        "{status}, {} bytes",
        downloaded.len()
    );
    let grown = peak_kib(&server) - before;
    assert!(
        grown < 40 << 10,
        "{grown} KiB more for a package of {} KiB",
        BYTES >> 10
    );
    // These chunks cross the border between two stored pieces.
    saved["firmwareId"] = package["id"].clone();
    rest.ok("POST", "/api/device", &saved);
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe("v2/fw/response/+/chunk/+", 1);
    let size = 3_000_001;
    for chunk in [0, 1, BYTES / size, BYTES / size + 1] {
        let asked = Publish::new(format!("v2/fw/request/1/chunk/{chunk}"), size.to_string());
        peer.publish(&asked.qos(1));
        let part = &bytes.as_bytes()[(chunk * size).min(BYTES)..((chunk + 1) * size).min(BYTES)];
        let found = expect(&mut peer, &format!("v2/fw/response/1/chunk/{chunk}"));
        assert!(
            found == part,
            "chunk {chunk}: {} bytes, expected {}",
            found.len(),
            part.len()
        );
    }
    // A truncated upload does not change the package.
    let package = create(&rest, &saved["deviceProfileId"], "FIRMWARE", "3.0");
    let path = format!("/api/otaPackage/{}?checksumAlgorithm=MD5", id_of(&package));
    let cut = format!("{FILE_HEAD}{}", &bytes[..3 << 20]);
    let (status, answer) = rest.form(&path, "b0undary", &cut);
    assert_eq!(status, 400, "{answer}");
    assert_eq!(upload(&rest, &package, "checksumAlgorithm=MD5", "whole").0, 200);
}

/// The process ended after it stored the change and before it announced the package to devices.
#[test]
fn unannounced_package_is_announced_at_the_next_start() {
    let mut server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "TOKEN");
    let id = Uuid::parse(&device).expect("an id");
    while_stopped(&mut server, |devices| {
        let entities = devices.entities();
        let stored: Device = entities.get(id).expect("the device");
        let package = OtaPackage {
            tenant_id: stored.tenant_id,
            device_profile_id: stored.device_profile_id,
            kind: OtaPackageType::Firmware,
            title: "meter".to_owned(),
            version: "1.10".to_owned(),
            url: Some("http://example.com/1.10".to_owned()),
            ..OtaPackage::default()
        };
        let package = entities.save_ota_package(package, NOW).expect("a package");
        let changed = Device {
            firmware_id: package.id.map(|id| id.entity()),
            ..stored
        };
        entities.save_device(changed, None, NOW).expect("the device is saved");
    });
    let rest = Rest::login(&server);
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/values");
    rest.wait_for(
        &server,
        &format!("{path}/attributes/SHARED_SCOPE?keys=fw_version"),
        |found| found[0]["value"] == "1.10",
    );
    // The version stays a string: "1.10" is not the number 1.1.
    rest.wait_for(&server, &format!("{path}/timeseries"), |latest| {
        latest["fw_state"][0]["value"] == "INITIATED" && latest["target_fw_version"][0]["value"] == "1.10"
    });
}
