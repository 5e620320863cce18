// Driver around the HiveMQ MQTT client. The protocol is described in tests/interop/README.md.

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttClientBuilder;
import com.hivemq.client.mqtt.MqttClientSslConfig;
import com.hivemq.client.mqtt.MqttWebSocketConfig;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.TrustManagerFactory;

final class Driver {
    /** What both versions of the client can do. Every method answers with the fields of its answer. */
    interface Connection {
        CompletableFuture<JsonObject> connect(JsonObject request) throws Exception;

        CompletableFuture<JsonObject> subscribe(JsonObject request);

        CompletableFuture<JsonObject> unsubscribe(JsonObject request);

        CompletableFuture<JsonObject> publish(JsonObject request);

        CompletableFuture<JsonObject> disconnect(JsonObject request);
    }

    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Map<String, Connection> CONNECTIONS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            perform(request).whenComplete((fields, error) -> {
                JsonObject answer = fields != null ? fields : new JsonObject();
                if (error != null) {
                    answer.addProperty("error", cause(error).toString());
                }
                answer.add("id", request.get("id"));
                send(answer);
            });
        }
        System.exit(0);
    }

    private static CompletableFuture<JsonObject> perform(JsonObject request) {
        String name = text(request, "as");
        try {
            if (text(request, "do").equals("connect")) {
                boolean isV5 = request.get("version").getAsInt() == 5;
                Connection made = isV5 ? new V5(name) : new V3(name);
                CONNECTIONS.put(name, made);
                return made.connect(request);
            }
            Connection connection = CONNECTIONS.get(name);
            switch (text(request, "do")) {
                case "subscribe":
                    return connection.subscribe(request);
                case "unsubscribe":
                    return connection.unsubscribe(request);
                case "publish":
                    return connection.publish(request);
                case "disconnect":
                    return connection.disconnect(request);
                case "forget":
                    // The client has no way to end a connection without DISCONNECT; where that matters the suite has cut
                    // the wire already.
                    connection.disconnect(new JsonObject());
                    return CompletableFuture.completedFuture(new JsonObject());
                default:
                    throw new IllegalArgumentException(request.get("do") + " is no command");
            }
        } catch (Exception error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    static void send(JsonObject line) {
        synchronized (OUT) {
            OUT.println(GSON.toJson(line));
            OUT.flush();
        }
    }

    static void sendClosed(String name, Integer reason) {
        JsonObject event = new JsonObject();
        event.addProperty("as", name);
        event.addProperty("event", "closed");
        event.addProperty("reason_code", reason);
        send(event);
    }

    static JsonObject message(String name, String topic, byte[] payload, int qos, boolean isRetained) {
        JsonObject event = new JsonObject();
        event.addProperty("as", name);
        event.addProperty("event", "message");
        event.addProperty("topic", topic);
        event.addProperty("payload", Base64.getEncoder().encodeToString(payload));
        event.addProperty("qos", qos);
        event.addProperty("retain", isRetained);
        return event;
    }

    static JsonObject reason(int code) {
        JsonObject answer = new JsonObject();
        answer.addProperty("reason_code", code);
        return answer;
    }

    static MqttClientBuilder builder(JsonObject request) throws Exception {
        String transport = text(request, "transport");
        MqttClientBuilder builder = MqttClient.builder()
                .identifier(text(request, "client_id"))
                .serverHost(text(request, "host"))
                .serverPort(request.get("port").getAsInt());
        if (request.has("ca")) {
            builder = builder.sslConfig(tls(request));
        }
        if (transport.equals("ws") || transport.equals("wss")) {
            builder = builder.webSocketConfig(MqttWebSocketConfig.builder().serverPath("mqtt").build());
        }
        return builder;
    }

    private static MqttClientSslConfig tls(JsonObject request) throws Exception {
        KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
        authorities.load(null);
        authorities.setCertificateEntry("ca", certificate(text(request, "ca")));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(authorities);
        KeyManagerFactory keys = null;
        if (request.has("cert")) {
            KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
            own.load(null);
            Certificate[] chain = {certificate(text(request, "cert"))};
            own.setKeyEntry("own", key(text(request, "key")), new char[0], chain);
            keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(own, new char[0]);
        }
        return MqttClientSslConfig.builder().trustManagerFactory(trust).keyManagerFactory(keys).build();
    }

    private static Certificate certificate(String path) throws Exception {
        try (FileInputStream file = new FileInputStream(path)) {
            return CertificateFactory.getInstance("X.509").generateCertificate(file);
        }
    }

    private static PrivateKey key(String path) throws Exception {
        String pem = Files.readString(Path.of(path)).replaceAll("-----[^-]*-----|\\s", "");
        return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem)));
    }

    static Throwable cause(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }

    static String text(JsonObject object, String key) {
        return object.get(key).getAsString();
    }

    static boolean flag(JsonObject object, String key) {
        return object.has(key) && object.get(key).getAsBoolean();
    }

    static int number(JsonObject object, String key, int otherwise) {
        return object.has(key) ? object.get(key).getAsInt() : otherwise;
    }

    static byte[] bytes(JsonObject object, String key) {
        return Base64.getDecoder().decode(text(object, key));
    }

    static byte[] bytes(ByteBuffer buffer) {
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    static JsonObject fields(JsonObject object) {
        return object.has("properties") ? object.getAsJsonObject("properties") : new JsonObject();
    }

    static JsonArray pairs(JsonObject fields) {
        return fields.has("user_properties") ? fields.getAsJsonArray("user_properties") : new JsonArray();
    }
}
