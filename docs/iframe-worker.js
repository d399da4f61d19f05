// Browsers start no worker of a page that is opened as a file, and Material's search is a worker: here it runs in a frame.
// Material's plugin `offline` would load a script with this purpose, and this name, from another server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === this.frame) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const setup = "postMessage = (data) => parent.postMessage(data, '*'); importScripts = () => {};";
      this.frame.document.write(`<script>${setup}</script><script src="${url}"></script>`);
      this.frame.document.close();
      this.ready = new Promise((resolve) => { this.frame.addEventListener("load", resolve); });
    }

    async postMessage(data) {
      await this.ready;
      this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data }));
    }
  };
}
